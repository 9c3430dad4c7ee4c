import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.FileWriter;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;

/**
 * Instances of one Kafka Streams application in one process, each with a thread, an id and a directory of its own.
 * Commands on standard input: "start NAME", "stop NAME". Each processed record is a line of the file:
 * name, partition, offset, monotonic nanoseconds (System.nanoTime is the clock that Python's monotonic_ns reads).
 *
 * With a sink the application counts records per key (a store of RocksDB with its changelog, the defaults) and writes
 * the counts there; a record is noted after it was counted, and only if it lies behind the topic's first records, which
 * are there to make the state.
 *
 * Arguments: bootstrap servers, application id, topic, file, state directory, sink ("-": none), first offset to note,
 * then Kafka Streams settings as name=value.
 */
public final class KafkaStreamsInstances {
    private static final int SETTINGS = 7;
    private static BufferedWriter out;

    public static void main(String[] arguments) throws Exception {
        out = new BufferedWriter(new FileWriter(arguments[3]));
        Map<String, KafkaStreams> running = new HashMap<>();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("start")) {
                KafkaStreams streams = new KafkaStreams(topology(words[1], arguments), settings(words[1], arguments));
                running.put(words[1], streams);
                streams.start();
            } else {
                CloseOptions leave = CloseOptions.timeout(Duration.ofSeconds(30))
                    .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP);
                running.remove(words[1]).close(leave);
            }
            System.out.println("done " + line);
        }
        for (KafkaStreams streams : running.values()) {
            streams.close(Duration.ofSeconds(10));
        }
    }

    private static org.apache.kafka.streams.Topology topology(String name, String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<byte[], byte[]> records =
            builder.stream(arguments[2], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()));
        if (!arguments[5].equals("-")) {
            records.groupByKey(Grouped.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .count()
                .toStream()
                .to(arguments[5], Produced.with(Serdes.ByteArray(), Serdes.Long()));
        }
        long first = Long.parseLong(arguments[6]);
        records.process(() -> new Noting(name, first)); // children of a node are called in the order they were added
        return builder.build();
    }

    private static Properties settings(String name, String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.CLIENT_ID_CONFIG, name);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4] + "/" + name);
        settings.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, "streams");
        for (int index = SETTINGS; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return settings;
    }

    private static final class Noting implements Processor<byte[], byte[], Void, Void> {
        private final String name;
        private final long first;
        private ProcessorContext<Void, Void> context;

        Noting(String name, long first) {
            this.name = name;
            this.first = first;
        }

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            this.context = context;
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            long now = System.nanoTime();
            context.recordMetadata().filter(where -> where.offset() >= first).ifPresent(where -> write(
                name + " " + where.partition() + " " + where.offset() + " " + now + "\n"));
        }
    }

    private static void write(String line) {
        synchronized (out) {
            try {
                out.write(line);
                out.flush();
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }
    }
}
