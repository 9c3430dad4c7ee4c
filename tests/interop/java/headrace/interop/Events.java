package headrace.interop;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.util.LinkedHashMap;
import java.util.Map;

/** What happens in this process, one JSON object a line: {"event": …, "at_ms": …, name: value, …}. */
final class Events {
    static final ObjectMapper JSON = new ObjectMapper();

    private final PrintStream out;

    Events(PrintStream out) {
        this.out = out;
    }

    /** {@code fields}: names and values in turn. */
    synchronized void tell(String event, Object... fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("at_ms", System.currentTimeMillis());
        line.putAll(object(fields));
        out.println(text(line));
        out.flush();
    }

    static Map<String, Object> object(Object... fields) {
        Map<String, Object> named = new LinkedHashMap<>();
        for (int i = 0; i < fields.length; i += 2) {
            named.put((String) fields[i], fields[i + 1]);
        }
        return named;
    }

    static String text(Object value) {
        try {
            return JSON.writeValueAsString(value);
        } catch (JsonProcessingException impossible) {
            throw new UncheckedIOException(impossible);
        }
    }
}
