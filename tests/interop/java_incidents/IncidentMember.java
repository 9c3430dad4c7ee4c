// Kafka's Java consumer as a member of a group whose troubles are recorded. Arguments: servers, group, topics (with
// commas), and further settings as name=value. Commands come on standard input: "slow MS" delays the next batch,
// "subscribe TOPICS" changes the topics, "end" closes. Standard output has the assignment after each change.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.Queue;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;

import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

public final class IncidentMember {

    private static final Logger LOG = LoggerFactory.getLogger(IncidentMember.class);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("auto.commit.interval.ms", "500");
        for (int at = 3; at < arguments.length; at++) {
            int equals = arguments[at].indexOf('=');
            settings.put(arguments[at].substring(0, equals), arguments[at].substring(equals + 1));
        }
        Queue<String> commands = new ConcurrentLinkedQueue<>();
        Thread reader = new Thread(() -> read(commands));
        reader.setDaemon(true);
        reader.start();
        try (var consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(topics(arguments[2]));
            consume(consumer, commands);
        } catch (RuntimeException error) {
            LOG.error("The consumer ends.", error);
            System.exit(1);
        }
    }

    private static void consume(KafkaConsumer<byte[], byte[]> consumer, Queue<String> commands) throws Exception {
        Set<String> had = null;
        for (String command = ""; !"end".equals(command); command = commands.poll()) {
            if (command != null && command.startsWith("slow ")) {
                Thread.sleep(Long.parseLong(command.substring(5)));
            } else if (command != null && command.startsWith("subscribe ")) {
                consumer.subscribe(topics(command.substring(10)));
            }
            try {
                consumer.poll(Duration.ofMillis(100));
            } catch (CommitFailedException error) {
                LOG.error("The commit failed.", error);
            }
            Set<String> has = new TreeSet<>();
            consumer.assignment().forEach(each -> has.add(each.toString()));
            if (!has.equals(had)) {
                had = has;
                System.out.println("assigned " + String.join(" ", has));
            }
        }
    }

    private static List<String> topics(String text) {
        return Arrays.asList(text.split(","));
    }

    private static void read(Queue<String> commands) {
        try (var lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                commands.add(line);
            }
        } catch (java.io.IOException error) {
            LOG.debug("Standard input ended.", error);
        }
        commands.add("end");
    }
}
