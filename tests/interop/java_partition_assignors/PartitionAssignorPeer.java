// Kafka's server-side assignors uniform and range on a string: a group is described line by line on stdin, assignments
// come back on stdout. Each group's previous assignment is what the assignor itself said last, so that histories run on.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

public final class PartitionAssignorPeer {
    private final Map<Uuid, Integer> topics = new HashMap<>();
    private final Map<String, Set<Uuid>> members = new TreeMap<>();
    private final Map<String, Map<Uuid, Set<Integer>>> previous = new HashMap<>();

    private final SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
        @Override
        public int numPartitions(Uuid topic) {
            return topics.getOrDefault(topic, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of();
        }
    };

    public static void main(String[] arguments) throws Exception {
        var peer = new PartitionAssignorPeer();
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            peer.obey(line.split(" "));
        }
    }

    private static Uuid topic(String number) {
        return new Uuid(0, Long.parseLong(number) + 1);
    }

    private void obey(String[] words) {
        switch (words[0]) {
            case "reset" -> {
                topics.clear();
                members.clear();
                previous.clear();
            }
            case "topic" -> topics.put(topic(words[1]), Integer.parseInt(words[2]));
            case "member" -> {
                Set<Uuid> read = new HashSet<>();
                for (int at = 2; at < words.length; at++) {
                    read.add(topic(words[at]));
                }
                members.put(words[1], read);
            }
            case "gone" -> {
                members.remove(words[1]);
                previous.remove(words[1]);
            }
            default -> assign(words[1].equals("range") ? new RangeAssignor() : new UniformAssignor());
        }
    }

    private void assign(ConsumerGroupPartitionAssignor assignor) {
        Map<String, MemberSubscriptionAndAssignmentImpl> specs = new HashMap<>();
        Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();
        members.forEach((id, read) -> {
            Map<Uuid, Set<Integer>> had = previous.getOrDefault(id, Map.of());
            had.forEach((topic, partitions) -> partitions.forEach(
                partition -> inverted.computeIfAbsent(topic, none -> new HashMap<>()).put(partition, id)));
            specs.put(id, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.empty(), read, new Assignment(Collections.unmodifiableMap(had))));
        });
        boolean same = new HashSet<>(members.values()).size() <= 1;
        var type = same ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        Map<String, MemberAssignment> found =
            assignor.assign(new GroupSpecImpl(specs, type, inverted, Optional.empty()), describer).members();
        previous.clear();
        for (String id : members.keySet()) {
            Map<Uuid, Set<Integer>> partitions = found.containsKey(id) ? found.get(id).partitions() : Map.of();
            previous.put(id, partitions);
            List<String> words = new TreeSet<>(partitions.keySet()).stream()
                .flatMap(topic -> new TreeSet<>(partitions.get(topic)).stream()
                    .map(partition -> (topic.getLeastSignificantBits() - 1) + ":" + partition))
                .toList();
            System.out.println(id + " " + String.join(" ", words));
        }
        System.out.println("done");
        System.out.flush();
    }
}
