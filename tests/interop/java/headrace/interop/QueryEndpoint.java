package headrace.interop;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.function.Function;
import java.util.stream.Stream;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsMetadata;
import org.apache.kafka.streams.TaskMetadata;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.state.HostInfo;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/** Interactive queries over HTTP. Every answer is JSON; what could not be answered is {"error": …}. */
final class QueryEndpoint {
    private final HttpServer server;

    /** Listens from now on, so that its port can become {@code application.server}. */
    QueryEndpoint() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(Executors.newCachedThreadPool(QueryEndpoint::daemon));
        server.start();
    }

    String address() {
        return "127.0.0.1:" + server.getAddress().getPort();
    }

    void serve(KafkaStreams streams, Runnable close) {
        answer("/state", query -> Map.of("state", streams.state().name()));
        answer("/tasks", query -> tasks(streams));
        answer("/instances", query -> streams.metadataForAllStreamsClients().stream().map(QueryEndpoint::instance).toList());
        answer("/owner", query -> owner(streams, query));
        answer("/value", query -> Events.object("value", store(streams).get(query)));
        answer("/values", query -> values(streams));
        answer("/close", query -> {
            new Thread(close, "close").start();
            return Map.of();
        });
    }

    private void answer(String path, Function<String, Object> question) {
        server.createContext(path, exchange -> {
            try (exchange) {
                send(exchange, 200, question.apply(exchange.getRequestURI().getQuery()));
            } catch (RuntimeException error) {
                send(exchange, 503, Events.object("error", error.getClass().getSimpleName(), "message", error.getMessage()));
            }
        });
    }

    private static void send(HttpExchange exchange, int status, Object answer) throws IOException {
        byte[] body = Events.text(answer).getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
    }

    private static Map<String, Object> tasks(KafkaStreams streams) {
        List<String> active = new ArrayList<>();
        List<String> standby = new ArrayList<>();
        for (ThreadMetadata thread : streams.metadataForLocalThreads()) {
            thread.activeTasks().forEach(task -> active.add(id(task)));
            thread.standbyTasks().forEach(task -> standby.add(id(task)));
        }
        return Events.object("active", active.stream().sorted().toList(), "standby", standby.stream().sorted().toList());
    }

    private static String id(TaskMetadata task) {
        return task.taskId().toString();
    }

    private static Map<String, Object> instance(StreamsMetadata instance) {
        return Events.object(
                "address", address(instance.hostInfo()),
                "partitions", names(instance.topicPartitions()),
                "standby_partitions", names(instance.standbyTopicPartitions()),
                "stores", instance.stateStoreNames().stream().sorted().toList(),
                "standby_stores", instance.standbyStateStoreNames().stream().sorted().toList());
    }

    private static List<String> names(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().toList();
    }

    private static Map<String, Object> owner(KafkaStreams streams, String key) {
        var found = streams.queryMetadataForKey(WordTopology.STORE, key, new StringSerializer());
        Stream<HostInfo> standby = found.standbyHosts().stream();
        return Events.object(
                "active", address(found.activeHost()),
                "standby", standby.map(QueryEndpoint::address).sorted().toList(),
                "partition", found.partition());
    }

    private static String address(HostInfo host) {
        return host.host() + ":" + host.port();
    }

    private static Map<String, Long> values(KafkaStreams streams) {
        Map<String, Long> found = new TreeMap<>();
        try (var all = store(streams).all()) {
            all.forEachRemaining(entry -> found.put(entry.key, entry.value));
        }
        return found;
    }

    private static ReadOnlyKeyValueStore<String, Long> store(KafkaStreams streams) {
        return streams.store(StoreQueryParameters.fromNameAndType(WordTopology.STORE, QueryableStoreTypes.keyValueStore()));
    }

    private static Thread daemon(Runnable work) {
        var thread = new Thread(work, "query");
        thread.setDaemon(true);
        return thread;
    }
}
