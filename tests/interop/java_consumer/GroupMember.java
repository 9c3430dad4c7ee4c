// Kafka's Java consumer as a member of a group: says after each change what it has, and every record it read; ends
// when its input ends. Arguments: servers, group, topic, and further settings as name=value.

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class GroupMember {

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("auto.offset.reset", "earliest");
        for (int at = 3; at < arguments.length; at++) {
            int equals = arguments[at].indexOf('=');
            settings.put(arguments[at].substring(0, equals), arguments[at].substring(equals + 1));
        }
        try (var consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            Set<Integer> had = null;
            while (System.in.available() == 0) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println("read " + record.partition() + " " + record.offset());
                }
                Set<Integer> has = new TreeSet<>();
                consumer.assignment().forEach(each -> has.add(each.partition()));
                if (!has.equals(had)) {
                    had = has;
                    System.out.println("assigned " + has.toString().replaceAll("[\\[\\],]", ""));
                }
                System.out.flush();
            }
        }
    }
}
