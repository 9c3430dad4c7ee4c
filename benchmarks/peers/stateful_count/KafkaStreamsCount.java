import java.io.File;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts records per key from topic to topic once, with Kafka Streams' defaults but for what the arguments set, and
 * tells on standard output: nanoseconds from the first time that all runs to the last record processed, and to the end
 * of close(), which commits and writes what the caches held. Records processed are taken from its own metrics, so that
 * the topology has nothing in it but the count.
 *
 * Arguments: bootstrap servers, application id, topic, sink, records, state directory, then settings as name=value.
 */
public final class KafkaStreamsCount {
    private static final long WITHIN_NANOS = Duration.ofMinutes(10).toNanos();

    private KafkaStreamsCount() {}

    public static void main(String[] arguments) throws Exception {
        long records = Long.parseLong(arguments[4]);
        KafkaStreams streams = new KafkaStreams(topology(arguments[2], arguments[3]), settings(arguments));
        AtomicLong running = new AtomicLong();
        AtomicLong cpuBefore = new AtomicLong();
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                running.compareAndSet(0, System.nanoTime());
                cpuBefore.compareAndSet(0, cpuMillis());
            }
        });
        long asked = System.nanoTime();
        streams.start();
        double before = 0;
        while (processed(streams) < records) {
            before = Math.max(before, processed(streams));
            if (System.nanoTime() - asked > WITHIN_NANOS || streams.state() == KafkaStreams.State.ERROR) {
                throw new IllegalStateException("processed " + before + " of " + records + " in state " + streams.state());
            }
            Thread.sleep(10);
        }
        long processed = System.nanoTime();
        long cpu = cpuMillis() - cpuBefore.get();
        streams.close(Duration.ofMinutes(1));
        long closed = System.nanoTime();
        System.out.printf(
                "{\"start_ms\": %d, \"processed_ms\": %d, \"closed_ms\": %d, \"cpu_ms\": %d}%n",
                (running.get() - asked) / 1_000_000,
                (processed - running.get()) / 1_000_000,
                (closed - running.get()) / 1_000_000,
                cpu);
        System.exit(0);
    }

    private static long cpuMillis() {
        return ProcessHandle.current().info().totalCpuDuration().orElse(Duration.ZERO).toMillis();
    }

    private static Topology topology(String topic, String sink) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic, Consumed.with(Serdes.String(), Serdes.ByteArray()))
                .groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()))
                .count()
                .toStream()
                .to(sink, Produced.with(Serdes.String(), Serdes.Long()));
        return builder.build();
    }

    private static double processed(KafkaStreams streams) {
        double sum = 0;
        for (Metric metric : streams.metrics().values()) {
            if (metric.metricName().name().equals("process-total")
                    && metric.metricName().group().equals("stream-thread-metrics")) {
                sum += (Double) metric.metricValue();
            }
        }
        return sum;
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, new File(arguments[5]).getAbsolutePath());
        settings.put("auto.offset.reset", "earliest");
        for (int index = 6; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return settings;
    }
}
