package headrace.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeStreamsGroupsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec;
import org.apache.kafka.clients.admin.StreamsGroupDescription;
import org.apache.kafka.clients.admin.StreamsGroupMemberAssignment;
import org.apache.kafka.clients.admin.StreamsGroupMemberDescription;
import org.apache.kafka.clients.admin.StreamsGroupSubtopologyDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Kafka's Admin client on a string: each line of standard input is a JSON list, the name of a call and its arguments;
 * each line of standard output is its answer, or {"error": type, "message": text}.
 */
public final class AdminShell {
    private final Admin admin;

    private AdminShell(Admin admin) {
        this.admin = admin;
    }

    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            var shell = new AdminShell(admin);
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                System.out.println(Events.text(shell.answer(Events.JSON.readTree(line))));
            }
        }
    }

    private Object answer(JsonNode call) throws InterruptedException {
        try {
            return called(call.get(0).asText(), call);
        } catch (ExecutionException error) {
            var cause = error.getCause();
            return Events.object("error", cause.getClass().getSimpleName(), "message", cause.getMessage());
        }
    }

    private Object called(String name, JsonNode call) throws ExecutionException, InterruptedException {
        String group = call.get(1).asText();
        return switch (name) {
            case "describeStreamsGroups" -> described(describedGroup(group));
            case "describeTopics" -> describedTopic(group);
            case "describeCluster" -> describedCluster();
            case "listGroups" -> listed(group);
            case "listStreamsGroupOffsets" -> offsets(group);
            case "alterStreamsGroupOffsets" -> done(admin.alterStreamsGroupOffsets(group, positions(call.get(2))).all().get());
            case "deleteStreamsGroupOffsets" -> done(admin.deleteStreamsGroupOffsets(group, partitions(call.get(2))).all().get());
            case "deleteStreamsGroups" -> done(admin.deleteStreamsGroups(List.of(group)).all().get());
            case "setGroupConfig" -> done(setGroupConfig(group, call.get(2).asText(), call.get(3).asText()));
            case "groupConfigs" -> groupConfigs(group);
            default -> throw new IllegalArgumentException(name);
        };
    }

    private StreamsGroupDescription describedGroup(String group) throws ExecutionException, InterruptedException {
        var asked = new DescribeStreamsGroupsOptions().includeAuthorizedOperations(true);
        return admin.describeStreamsGroups(List.of(group), asked).all().get().get(group);
    }

    private Map<String, Object> describedTopic(String name) throws ExecutionException, InterruptedException {
        var asked = new DescribeTopicsOptions().includeAuthorizedOperations(true);
        var topic = admin.describeTopics(List.of(name), asked).allTopicNames().get().get(name);
        return Events.object(
                "internal", topic.isInternal(),
                "partitions", topic.partitions().size(),
                "replicas", topic.partitions().get(0).replicas().size(),
                "may", names(topic.authorizedOperations()));
    }

    private Map<String, Object> describedCluster() throws ExecutionException, InterruptedException {
        var found = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        return Events.object(
                "nodes", found.nodes().get().size(),
                "controller is one of them", found.nodes().get().contains(found.controller().get()),
                "may", names(found.authorizedOperations().get()));
    }

    private static List<String> names(Collection<?> constants) {
        return constants == null ? null : constants.stream().map(Object::toString).sorted().toList();
    }

    private static Object done(Void nothing) {
        return Map.of();
    }

    private Object listed(String group) throws ExecutionException, InterruptedException {
        return admin.listGroups().all().get().stream()
                .filter(one -> one.groupId().equals(group))
                .map(one -> Events.object(
                        "type", one.type().map(Object::toString).orElse(null),
                        "protocol", one.protocol(),
                        "state", one.groupState().map(Object::toString).orElse(null)))
                .toList();
    }

    private Map<String, Object> offsets(String group) throws ExecutionException, InterruptedException {
        var found = admin.listStreamsGroupOffsets(Map.of(group, new ListStreamsGroupOffsetsSpec()));
        Map<String, Object> named = new TreeMap<>();
        found.partitionsToOffsetAndMetadata(group).get().forEach((partition, at) ->
                named.put(partition.toString(), at == null ? null : at.offset()));
        return named;
    }

    /** {"topic-0": 12} */
    private static Map<TopicPartition, OffsetAndMetadata> positions(JsonNode given) {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
        given.properties().forEach(one -> found.put(partition(one.getKey()), new OffsetAndMetadata(one.getValue().asLong())));
        return found;
    }

    private static Set<TopicPartition> partitions(JsonNode given) {
        Set<TopicPartition> found = new HashSet<>();
        given.forEach(one -> found.add(partition(one.asText())));
        return found;
    }

    private static TopicPartition partition(String name) {
        int dash = name.lastIndexOf('-');
        return new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
    }

    private Void setGroupConfig(String group, String name, String value) throws ExecutionException, InterruptedException {
        var change = new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
        return admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(change))).all().get();
    }

    private Map<String, String> groupConfigs(String group) throws ExecutionException, InterruptedException {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        Map<String, String> named = new TreeMap<>();
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            if (entry.name().startsWith("streams.")) {
                named.put(entry.name(), entry.value() + " " + entry.source());
            }
        }
        return named;
    }

    private static Map<String, Object> described(StreamsGroupDescription group) {
        return Events.object(
                "state", group.groupState().toString(),
                "group_epoch", group.groupEpoch(),
                "target_epoch", group.targetAssignmentEpoch(),
                "topology_epoch", group.topologyEpoch(),
                "may", names(group.authorizedOperations()),
                "subtopologies", group.subtopologies().stream().map(AdminShell::described).toList(),
                "members", group.members().stream().map(AdminShell::described).toList());
    }

    private static Map<String, Object> described(StreamsGroupSubtopologyDescription one) {
        return Events.object(
                "id", one.subtopologyId(),
                "sources", one.sourceTopics(),
                "repartition_sinks", one.repartitionSinkTopics(),
                "repartition_sources", topics(one.repartitionSourceTopics()),
                "changelogs", topics(one.stateChangelogTopics()));
    }

    private static Map<String, Object> topics(Map<String, StreamsGroupSubtopologyDescription.TopicInfo> given) {
        Map<String, Object> named = new TreeMap<>();
        given.forEach((name, topic) -> named.put(name, Events.object(
                "partitions", topic.partitions(),
                "replication_factor", topic.replicationFactor(),
                "configs", new TreeMap<>(topic.topicConfigs()))));
        return named;
    }

    private static Map<String, Object> described(StreamsGroupMemberDescription one) {
        return Events.object(
                "member_id", one.memberId(),
                "member_epoch", one.memberEpoch(),
                "instance_id", one.instanceId().orElse(null),
                "rack_id", one.rackId().orElse(null),
                "client_id", one.clientId(),
                "client_host", one.clientHost(),
                "topology_epoch", one.topologyEpoch(),
                "process_id", one.processId(),
                "endpoint", one.userEndpoint().map(at -> at.host() + ":" + at.port()).orElse(null),
                "client_tags", one.clientTags(),
                "task_offsets", one.taskOffsets().size(),
                "task_end_offsets", one.taskEndOffsets().size(),
                "classic", one.isClassic(),
                "assignment", described(one.assignment()),
                "target", described(one.targetAssignment()));
    }

    private static Map<String, Object> described(StreamsGroupMemberAssignment tasks) {
        return Events.object(
                "active", named(tasks.activeTasks()),
                "standby", named(tasks.standbyTasks()),
                "warmup", named(tasks.warmupTasks()));
    }

    /** "subtopology_partition", as Kafka Streams names its tasks. */
    private static List<String> named(Collection<StreamsGroupMemberAssignment.TaskIds> tasks) {
        List<String> found = new ArrayList<>();
        tasks.forEach(ids -> ids.partitions().forEach(partition -> found.add(ids.subtopologyId() + "_" + partition)));
        return found.stream().sorted().toList();
    }
}
