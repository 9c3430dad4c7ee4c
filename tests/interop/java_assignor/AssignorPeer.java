// Kafka's StickyTaskAssignor on a string: groups are described line by line on stdin, assignments come back on stdout.
// Each group's previous assignment is what the assignor itself said last, so that histories run on.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

import org.apache.kafka.coordinator.group.streams.assignor.AssignmentMemberSpec;
import org.apache.kafka.coordinator.group.streams.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.assignor.TopologyDescriber;

public final class AssignorPeer {

    private record Subtopology(int tasks, boolean stateful) {
    }

    private static final class Topology implements TopologyDescriber {
        final Map<String, Subtopology> subtopologies = new TreeMap<>();

        @Override
        public List<String> subtopologies() {
            return List.copyOf(subtopologies.keySet());
        }

        @Override
        public int maxNumInputPartitions(String id) {
            return subtopologies.get(id).tasks();
        }

        @Override
        public boolean isStateful(String id) {
            return subtopologies.get(id).stateful();
        }
    }

    private final Map<String, String> processes = new TreeMap<>();
    private final Map<String, MemberAssignment> previous = new HashMap<>();
    private final StickyTaskAssignor assignor = new StickyTaskAssignor();
    private Topology topology = new Topology();
    private String standbys = "0";

    public static void main(String[] arguments) throws IOException {
        AssignorPeer peer = new AssignorPeer();
        PrintStream out = new PrintStream(System.out, false);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            peer.obey(line.split(" "), out);
        }
    }

    private void obey(String[] words, PrintStream out) {
        switch (words[0]) {
            case "reset" -> {
                processes.clear();
                previous.clear();
                topology = new Topology();
            }
            case "subtopology" -> topology.subtopologies.put(
                words[1], new Subtopology(Integer.parseInt(words[2]), Boolean.parseBoolean(words[3])));
            case "standbys" -> standbys = words[1];
            case "member" -> processes.put(words[1], words[2]);
            case "gone" -> {
                processes.remove(words[1]);
                previous.remove(words[1]);
            }
            case "assign" -> {
                GroupAssignment assignment = assignor.assign(spec(), topology);
                previous.clear();
                previous.putAll(assignment.members());
                show(out);
                out.flush();
            }
            case "time" -> {
                out.println(microseconds(Integer.parseInt(words[1])));
                out.flush();
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private GroupSpecImpl spec() {
        Map<String, AssignmentMemberSpec> members = new HashMap<>();
        processes.forEach((id, process) -> {
            MemberAssignment had = previous.getOrDefault(id, MemberAssignment.empty());
            members.put(id, new AssignmentMemberSpec(Optional.empty(), Optional.empty(), had.activeTasks(),
                had.standbyTasks(), Map.of(), process, Map.of(), Map.of(), Map.of()));
        });
        return new GroupSpecImpl(members, Map.of("num.standby.replicas", standbys));
    }

    private String microseconds(int rounds) {
        GroupSpecImpl spec = spec();
        long[] nanoseconds = new long[rounds];
        for (int round = 0; round < rounds; round++) {
            long began = System.nanoTime();
            assignor.assign(spec, topology);
            nanoseconds[round] = System.nanoTime() - began;
        }
        Arrays.sort(nanoseconds);
        return nanoseconds[0] / 1000 + " " + nanoseconds[rounds / 2] / 1000;
    }

    private void show(PrintStream out) {
        for (String id : processes.keySet()) {
            MemberAssignment has = previous.get(id);
            out.println(id + " active" + tasks(has.activeTasks()) + " standby" + tasks(has.standbyTasks()));
        }
        out.println("done");
    }

    private static String tasks(Map<String, Set<Integer>> bySubtopology) {
        StringBuilder text = new StringBuilder();
        new TreeMap<>(bySubtopology).forEach((id, partitions) ->
            partitions.stream().sorted().forEach(partition -> text.append(' ').append(id).append(':').append(partition)));
        return text.toString();
    }
}
