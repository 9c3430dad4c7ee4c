import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetryContext;
import org.apache.kafka.server.telemetry.ClientTelemetryExporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporterProvider;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;

/** Receiver of client metrics in Apache Kafka: a line of a file for each push, as client id, codec, bytes in base64. */
public class ReceivedMetrics implements MetricsReporter, ClientTelemetryExporterProvider, ClientTelemetryExporter {
    private Path file;

    @Override
    public void configure(Map<String, ?> configs) {
        file = Path.of(String.valueOf(configs.get("test.received.metrics")));
    }

    @Override
    public ClientTelemetryExporter clientTelemetryExporter() {
        return this;
    }

    @Override
    public synchronized void exportMetrics(ClientTelemetryContext context, ClientTelemetryPayload payload) {
        ByteBuffer data = payload.data();
        byte[] bytes = new byte[data.remaining()];
        data.duplicate().get(bytes);
        String line = context.authorizableRequestContext().clientId() + " " + payload.contentType() + " " + payload.isTerminating() + " "
            + Base64.getEncoder().encodeToString(bytes) + "\n";
        try {
            Files.write(file, line.getBytes(StandardCharsets.UTF_8), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
    }

    @Override
    public void metricChange(KafkaMetric metric) {
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
    }

    @Override
    public void close() {
    }
}
