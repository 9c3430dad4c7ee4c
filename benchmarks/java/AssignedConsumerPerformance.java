import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * What Kafka's ConsumerPerformance measures, for a broker that serves no consumer groups yet: all partitions are
 * assigned, read from the start until so many records came, and their keys' and values' bytes are counted. Prints
 * records, bytes and milliseconds from the first poll on.
 */
public final class AssignedConsumerPerformance {
    private AssignedConsumerPerformance() { }

    public static void main(String[] arguments) {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        long wanted = Long.parseLong(arguments[3]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("check.crcs", "false");
        settings.put("receive.buffer.bytes", "2097152");
        settings.put("max.partition.fetch.bytes", "1048576");
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        settings.put("key.deserializer", bytes);
        settings.put("value.deserializer", bytes);
        long records = 0;
        long size = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> all = IntStream.range(0, partitions)
                .mapToObj(number -> new TopicPartition(topic, number)).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            long began = System.currentTimeMillis();
            long last = began;
            while (records < wanted && System.currentTimeMillis() - last < 60_000) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    records++;
                    size += (record.key() == null ? 0 : record.key().length) + record.value().length;
                    last = System.currentTimeMillis();
                }
            }
            System.out.println(records + " " + size + " " + (System.currentTimeMillis() - began));
        }
    }
}
