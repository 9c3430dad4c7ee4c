package headrace.interop;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/**
 * One instance of the application: {@code WordCount settings.properties}. The file has the settings of Kafka Streams,
 * and of our own {@code word.source}, {@code word.sink}; {@code word.on.disk}: the store is RocksDB;
 * {@code word.added}: see {@link WordTopology}; {@code word.by.id}: one without a repartition topic;
 * {@code word.queries}: the group is told where this instance answers;
 * {@code word.on.error}: what an exception ends, SHUTDOWN_CLIENT or SHUTDOWN_APPLICATION.
 *
 * <p>Standard output tells what happens, one JSON object a line ({@link Events}); {@link QueryEndpoint} answers
 * questions and takes the order to close. The exit code is 0 after an orderly end, 1 after an error.
 */
public final class WordCount {
    private static final Duration CLOSE_WITHIN = Duration.ofSeconds(30);

    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = read(arguments[0]);
        var events = new Events(System.out);
        var endpoint = new QueryEndpoint();
        if (Boolean.parseBoolean(settings.getProperty("word.queries"))) {
            settings.setProperty(StreamsConfig.APPLICATION_SERVER_CONFIG, endpoint.address());
        }

        var topology = WordTopology.of(
                settings.getProperty("word.source"),
                settings.getProperty("word.sink"),
                Boolean.parseBoolean(settings.getProperty("word.on.disk")),
                settings.getProperty("word.added"),
                Boolean.parseBoolean(settings.getProperty("word.by.id")));
        var streams = new KafkaStreams(topology, settings);
        // The state changes before its listener hears of it: the end is when the last state was told.
        var ended = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            events.tell("state", "from", before.name(), "to", now.name());
            if (now.hasCompletedShutdown()) {
                ended.countDown();
            }
        });
        streams.setUncaughtExceptionHandler(error -> {
            events.tell("error", "type", error.getClass().getName(), "message", error.getMessage(), "cause", causeOf(error));
            return StreamThreadExceptionResponse.valueOf(settings.getProperty("word.on.error"));
        });
        endpoint.serve(streams, () -> streams.close(CLOSE_WITHIN));
        events.tell("listening", "address", endpoint.address());
        streams.start();
        ended.await();
        System.exit(streams.state() == KafkaStreams.State.ERROR ? 1 : 0);
    }

    private static String causeOf(Throwable error) {
        return error.getCause() == null ? null : error.getCause().getClass().getName();
    }

    private static Properties read(String file) throws IOException {
        var settings = new Properties();
        try (InputStream in = new FileInputStream(file)) {
            settings.load(in);
        }
        return settings;
    }
}
