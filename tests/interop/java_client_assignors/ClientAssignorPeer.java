// Kafka's client-side assignors and the bytes of its ConsumerProtocol on a string: a group is described line by line on
// stdin, answers come back on stdout.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public final class ClientAssignorPeer {

    private final Map<String, Integer> topics = new TreeMap<>();
    private final Map<String, Subscription> members = new TreeMap<>();

    public static void main(String[] arguments) throws IOException {
        ClientAssignorPeer peer = new ClientAssignorPeer();
        PrintStream out = new PrintStream(System.out, false);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            peer.obey(line.split(" "), out);
        }
    }

    @SuppressWarnings("removal") // ConsumerGroupMetadata has no other way in
    private void obey(String[] words, PrintStream out) {
        switch (words[0]) {
            case "reset" -> {
                topics.clear();
                members.clear();
            }
            case "topic" -> topics.put(words[1], Integer.parseInt(words[2]));
            case "member" -> members.put(words[1], subscription(words));
            case "assign" -> {
                assigned(words[1]).forEach((id, assignment) ->
                    out.println(id + " " + partitions(assignment.partitions()) + " "
                        + hex(ConsumerProtocol.serializeAssignment(assignment))));
                out.println("done");
                out.flush();
            }
            case "encode" -> {
                out.println(hex(ConsumerProtocol.serializeSubscription(members.get(words[1]), Short.parseShort(words[2]))));
                out.flush();
            }
            case "decode" -> {
                Subscription read = ConsumerProtocol.deserializeSubscription(bytes(words[1]), Short.parseShort(words[2]));
                out.println(String.join(",", read.topics()) + " " + hex(read.userData()) + " "
                    + partitions(read.ownedPartitions()) + " " + read.generationId().orElse(-1) + " "
                    + read.rackId().orElse("-"));
                out.flush();
            }
            case "sticky" -> {
                StickyAssignor assignor = new StickyAssignor();
                assignor.onAssignment(new Assignment(listed(words[1])),
                    new ConsumerGroupMetadata("g", Integer.parseInt(words[2]), "m", Optional.empty()));
                out.println(hex(assignor.subscriptionUserData(new HashSet<>(topics.keySet()))));
                out.flush();
            }
            case "cooperative" -> {
                CooperativeStickyAssignor assignor = new CooperativeStickyAssignor();
                assignor.onAssignment(new Assignment(List.of()),
                    new ConsumerGroupMetadata("g", Integer.parseInt(words[1]), "m", Optional.empty()));
                out.println(hex(assignor.subscriptionUserData(new HashSet<>(topics.keySet()))));
                out.flush();
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    // member ID INSTANCE TOPICS USER-DATA OWNED GENERATION RACK, "-" for what there is not
    private static Subscription subscription(String[] words) {
        List<String> topics = words[3].equals("-") ? List.of() : Arrays.asList(words[3].split(","));
        ByteBuffer userData = words[4].equals("-") ? null : bytes(words[4]);
        Optional<String> rack = words[7].equals("-") ? Optional.empty() : Optional.of(words[7]);
        Subscription made =
            new Subscription(topics, userData, listed(words[5]), Integer.parseInt(words[6]), rack);
        made.setGroupInstanceId(words[2].equals("-") ? Optional.empty() : Optional.of(words[2]));
        return made;
    }

    private Map<String, Assignment> assigned(String name) {
        ConsumerPartitionAssignor assignor = switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
        Node node = new Node(1, "localhost", 9092);
        Node[] nodes = {node};
        List<PartitionInfo> every = new ArrayList<>();
        topics.forEach((topic, count) -> {
            for (int number = 0; number < count; number++) {
                every.add(new PartitionInfo(topic, number, node, nodes, nodes));
            }
        });
        Cluster cluster = new Cluster("c", List.of(node), every, Set.of(), Set.of());
        return new TreeMap<>(assignor.assign(cluster, new GroupSubscription(members)).groupAssignment());
    }

    private static List<TopicPartition> listed(String text) {
        List<TopicPartition> found = new ArrayList<>();
        if (!text.equals("-")) {
            for (String each : text.split(",")) {
                int colon = each.indexOf(':');
                found.add(new TopicPartition(each.substring(0, colon), Integer.parseInt(each.substring(colon + 1))));
            }
        }
        return found;
    }

    private static String partitions(List<TopicPartition> listed) {
        StringBuilder text = new StringBuilder();
        for (TopicPartition each : listed) {
            text.append(text.isEmpty() ? "" : ",").append(each.topic()).append(':').append(each.partition());
        }
        return text.isEmpty() ? "-" : text.toString();
    }

    private static ByteBuffer bytes(String hex) {
        return ByteBuffer.wrap(HexFormat.of().parseHex(hex));
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return "-";
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
