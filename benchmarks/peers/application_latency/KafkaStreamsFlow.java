import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * An application of Kafka Streams that runs until its standard input ends: "copy" (topic to topic), "sql" (the same with
 * a filter and changed values), "count" (per key of the record) or "two_hops" (the same by another field of the value,
 * through a repartition topic). The counts carry the largest "sent" of their records. Says "running" once all runs.
 *
 * Values are the JSON texts of benchmarks/steady_flow.py; fields are found by looking for their names, which costs less
 * than a parser. What a count keeps are two longs.
 *
 * Arguments: what, bootstrap servers, application id, topic, sink, state directory, then settings as name=value.
 */
public final class KafkaStreamsFlow {
    private static final byte[] SENT = "\"sent\": ".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] KEY = "\"key\": \"".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] OTHER = "\"other\": \"".getBytes(StandardCharsets.US_ASCII);

    private KafkaStreamsFlow() {}

    public static void main(String[] arguments) throws Exception {
        try (KafkaStreams streams =
                new KafkaStreams(topology(arguments[0], arguments[3], arguments[4]), settings(arguments))) {
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING) {
                    System.out.println("running");
                }
            });
            streams.start();
            while (System.in.read() >= 0) {
                // until it ends
            }
        }
        System.exit(0);
    }

    private static Topology topology(String what, String topic, String sink) {
        Serde<String> texts = Serdes.String();
        Serde<byte[]> bytes = Serdes.ByteArray();
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, byte[]> records = builder.stream(topic, Consumed.with(texts, bytes));
        if (what.equals("copy")) {
            records.to(sink, Produced.with(texts, bytes));
            return builder.build();
        }
        if (what.equals("sql")) {
            records.filter((key, value) -> number(value, SENT) % 2 >= 0)
                    .map((key, value) -> KeyValue.pair(text(value, KEY), changed(value)))
                    .to(sink, Produced.with(texts, bytes));
            return builder.build();
        }
        Grouped<String, byte[]> grouping = Grouped.with(texts, bytes);
        KGroupedStream<String, byte[]> grouped = what.equals("count")
                ? records.groupByKey(grouping)
                : records.groupBy((key, value) -> text(value, OTHER), grouping);
        grouped.aggregate(
                        () -> new byte[16],
                        (key, value, kept) -> added(value, kept),
                        Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>with(texts, bytes))
                .toStream()
                .map((key, kept) -> KeyValue.pair(key, json(key, kept)))
                .to(sink, Produced.with(texts, bytes));
        return builder.build();
    }

    private static byte[] changed(byte[] value) {
        String text = "{\"key\": \"" + text(value, KEY) + "\", \"other\": \"" + text(value, OTHER).toUpperCase()
                + "\", \"sent\": " + number(value, SENT) + "}";
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] added(byte[] value, byte[] kept) {
        ByteBuffer before = ByteBuffer.wrap(kept);
        return ByteBuffer.allocate(16)
                .putLong(before.getLong() + 1)
                .putLong(Math.max(before.getLong(), number(value, SENT)))
                .array();
    }

    private static byte[] json(String key, byte[] kept) {
        ByteBuffer found = ByteBuffer.wrap(kept);
        String text = "{\"key\": \"" + key + "\", \"n\": " + found.getLong() + ", \"sent\": " + found.getLong() + "}";
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static long number(byte[] value, byte[] name) {
        long found = 0;
        for (int at = behind(value, name); value[at] >= '0' && value[at] <= '9'; at++) {
            found = found * 10 + value[at] - '0';
        }
        return found;
    }

    private static String text(byte[] value, byte[] name) {
        int from = behind(value, name);
        int until = from;
        while (value[until] != '"') {
            until++;
        }
        return new String(value, from, until - from, StandardCharsets.US_ASCII);
    }

    private static int behind(byte[] value, byte[] name) {
        for (int at = 0; at + name.length <= value.length; at++) {
            int same = 0;
            while (same < name.length && value[at + same] == name[same]) {
                same++;
            }
            if (same == name.length) {
                return at + same;
            }
        }
        throw new IllegalArgumentException(new String(value, StandardCharsets.UTF_8));
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[1]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, new File(arguments[5]).getAbsolutePath());
        settings.put("auto.offset.reset", "earliest");
        for (int index = 6; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return settings;
    }
}
