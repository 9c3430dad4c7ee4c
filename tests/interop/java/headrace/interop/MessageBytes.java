package headrace.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Messages in Kafka's own bytes. Each line of standard input is {"message": …, "version": …, "json": …}, the JSON in
 * the form of Kafka's request log; each line of standard output is the same object with "hex".
 */
public final class MessageBytes {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode given = (ObjectNode) mapper.readTree(line);
            short version = (short) given.get("version").asInt();
            Message message = (Message) Class.forName(
                    "org.apache.kafka.common.message." + given.get("message").asText() + "DataJsonConverter")
                .getMethod("read", JsonNode.class, short.class)
                .invoke(null, given.get("json"), version);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(buffer), cache, version);
            System.out.println(mapper.writeValueAsString(given.put("hex", HexFormat.of().formatHex(buffer.array()))));
        }
    }
}
