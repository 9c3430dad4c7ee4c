// User data of Kafka Streams' own assignor in every version of its layout, as lines "role version hexadecimal".

package org.apache.kafka.streams.processor.internals.assignment;

import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.state.HostInfo;

public final class StreamsUserData {

    public static void main(String[] arguments) {
        ProcessId process = new ProcessId(new UUID(0x0123456789abcdefL, 0x0fedcba987654321L));
        for (int version = 1; version <= 11; version++) {
            Map<String, String> tags = version >= 11 ? Map.of("zone", "a") : Map.of();
            Map<TaskId, Long> sums = new TreeMap<>(Map.of(task(version, 0, 1), -2L, task(version, 1, 2), 70_000L));
            int error = version >= 9 ? 1 : 0;
            print("subscription", version,
                new SubscriptionInfo(version, 11, process, "host:80", sums, (byte) 3, error, tags).encode());
            print("assignment", version, assignment(version));
        }
    }

    private static ByteBuffer assignment(int version) {
        TopicPartition orders = new TopicPartition("orders", 1);
        TopicPartition bills = new TopicPartition("bills", 2);
        AssignmentInfo info = new AssignmentInfo(
            version,
            11,
            List.of(task(version, 0, 1)),
            Map.of(task(version, 1, 2), Set.of(bills)),
            Map.of(new HostInfo("host", 80), Set.of(orders)),
            Map.of(new HostInfo("other", 81), Set.of(bills)),
            version >= 4 ? 2 : 0);
        if (version >= 7) {
            info.setNextRebalanceTime(1_700_000_000_000L);
        }
        return info.encode();
    }

    // Named topologies came with version 10.
    private static TaskId task(int version, int group, int partition) {
        return version >= 10 ? new TaskId(group, partition, "plan") : new TaskId(group, partition);
    }

    private static void print(String role, int version, ByteBuffer data) {
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        System.out.println(role + " " + version + " " + HexFormat.of().formatHex(bytes));
    }
}
