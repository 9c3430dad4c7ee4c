// Metadata and assignments of Kafka Connect's protocols as lines "role version hexadecimal".

import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;

import org.apache.kafka.connect.runtime.distributed.ConnectProtocol;
import org.apache.kafka.connect.runtime.distributed.ExtendedAssignment;
import org.apache.kafka.connect.runtime.distributed.ExtendedWorkerState;
import org.apache.kafka.connect.runtime.distributed.IncrementalCooperativeConnectProtocol;
import org.apache.kafka.connect.util.ConnectorTaskId;

public final class ConnectUserData {

    public static void main(String[] arguments) {
        List<ConnectorTaskId> tasks = List.of(new ConnectorTaskId("files", 0), new ConnectorTaskId("files", 3));
        print("subscription", 0,
            ConnectProtocol.serializeMetadata(new ConnectProtocol.WorkerState("http://one:8083/", 42)));
        print("assignment", 0, ConnectProtocol.serializeAssignment(new ConnectProtocol.Assignment(
            (short) 0, "leader-1", "http://one:8083/", 42, List.of("files"), tasks)));
        for (short version = 1; version <= 2; version++) {
            boolean sessioned = version == 2;
            ExtendedAssignment assignment = new ExtendedAssignment(
                version, (short) 0, "leader-1", "http://one:8083/", 42, List.of("files"), tasks, List.of(),
                List.of(new ConnectorTaskId("rows", 1)), 300_000);
            print("subscription", version, IncrementalCooperativeConnectProtocol.serializeMetadata(
                new ExtendedWorkerState("http://two:8083/", 43, assignment), sessioned));
            print("empty", version, IncrementalCooperativeConnectProtocol.serializeMetadata(
                new ExtendedWorkerState("http://two:8083/", 43, ExtendedAssignment.empty()), sessioned));
            print("assignment", version,
                IncrementalCooperativeConnectProtocol.serializeAssignment(assignment, sessioned));
        }
    }

    private static void print(String role, int version, ByteBuffer data) {
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        System.out.println(role + " " + version + " " + HexFormat.of().formatHex(bytes));
    }
}
