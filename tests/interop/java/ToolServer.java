import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's console tools one after the other in one JVM, since starting one takes longer than most commands.
 * A request is a line "class TAB argument TAB ..."; the answer is a line "exit-code out-bytes err-bytes" and the bytes.
 */
public final class ToolServer {
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }

    private static Integer exitCode;

    public static void main(String[] arguments) throws Exception {
        Exit.Procedure remember = (status, message) -> {
            if (exitCode == null) {  // some tools catch what their own exit throws, and exit again
                exitCode = status;
            }
            throw new Ended();
        };
        Exit.setExitProcedure(remember);
        Exit.setHaltProcedure(remember);
        PrintStream answers = System.out;
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] parts = line.split("\t", -1);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            PrintStream realErr = System.err;
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            int status = run(parts[0], Arrays.copyOfRange(parts, 1, parts.length));
            System.out.flush();
            System.err.flush();
            System.setErr(realErr);
            answers.print(status + " " + out.size() + " " + err.size() + "\n");
            answers.write(out.toByteArray());
            answers.write(err.toByteArray());
            answers.flush();
        }
    }

    private static int run(String tool, String[] arguments) throws Exception {
        exitCode = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace();
                return 1;
            }
        }
        return exitCode == null ? 0 : exitCode;
    }
}
