// Kafka's consumer with group.protocol=consumer: says after each change what it has, one line each; ends, and leaves its
// group, when its input ends. Arguments: servers, group, "topic:NAME" or "pattern:RE2", and settings as name=value.

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;

import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class ModernConsumer {

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        for (int at = 3; at < arguments.length; at++) {
            int equals = arguments[at].indexOf('=');
            settings.put(arguments[at].substring(0, equals), arguments[at].substring(equals + 1));
        }
        String wanted = arguments[2].substring(arguments[2].indexOf(':') + 1);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            if (arguments[2].startsWith("pattern:")) {
                consumer.subscribe(new SubscriptionPattern(wanted));
            } else {
                consumer.subscribe(List.of(wanted));
            }
            var had = new TreeSet<String>(List.of("nothing yet"));
            int read = 0;
            while (System.in.available() == 0) {
                int count = consumer.poll(Duration.ofMillis(50)).count();
                var has = new TreeSet<String>();
                consumer.assignment().forEach(each -> has.add(each.topic() + "-" + each.partition()));
                if (count > 0 || !has.equals(had)) {
                    read += count;
                    had = has;
                    System.out.println(read + " " + String.join(" ", has));
                    System.out.flush();
                }
            }
        } catch (RuntimeException error) {
            System.out.println("error " + error.getClass().getSimpleName() + ": " + error.getMessage());
            System.out.flush();
        }
    }
}
