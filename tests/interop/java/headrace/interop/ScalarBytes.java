package headrace.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Utils;

/**
 * Kafka's serdes. Each line of standard input is {"format": …, "hex": …, "partitions": …}; each line of standard output
 * is the same object with "text", the value that the deserializer reads, "written", what the serializer makes of it, and
 * "partition", where a Java producer sends a key with those bytes; or with "error".
 */
public final class ScalarBytes {
    private static final Map<String, Serde<?>> SERDES = Map.of(
        "short", Serdes.Short(),
        "integer", Serdes.Integer(),
        "long", Serdes.Long(),
        "float", Serdes.Float(),
        "double", Serdes.Double(),
        "boolean", Serdes.Boolean(),
        "uuid", Serdes.UUID(),
        "string", Serdes.String());

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode given = (ObjectNode) mapper.readTree(line);
            try {
                answer(given, SERDES.get(given.get("format").asText()));
            } catch (SerializationException | IllegalArgumentException error) {
                given.put("error", String.valueOf(error.getMessage()));
            }
            System.out.println(mapper.writeValueAsString(given));
        }
    }

    private static <T> void answer(ObjectNode given, Serde<T> serde) {
        T value = serde.deserializer().deserialize("topic", HexFormat.of().parseHex(given.get("hex").asText()));
        byte[] written = serde.serializer().serialize("topic", value);
        given.put("text", value.toString());
        given.put("written", HexFormat.of().formatHex(written));
        given.put("partition", Utils.toPositive(Utils.murmur2(written)) % given.get("partitions").asInt());
    }
}
