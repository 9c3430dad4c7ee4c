import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Nexmark queries as Kafka Streams topologies, in a process that stays warm.
 *
 * <p>Argument: bootstrap servers. One JSON line reports that it is ready. Each line on standard input names a run,
 * {"query": "q17", "prefix": "nexmark", "sink": "results", "records": 920000, "directory": "/tmp/x"}; it is answered
 * with the seconds from the state RUNNING to the last record that was processed. Two threads, exactly once, otherwise
 * the defaults. The end of a run is recognised by three seconds without a processed record, which do not count.
 */
public final class KafkaStreamsNexmark {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long QUIET_NANOS = Duration.ofSeconds(3).toNanos();
    private static final Duration DELAY = Duration.ofSeconds(4);
    // Stream time belongs to a task: behind a repartition topic, rows of a task that reads ahead make others late.
    private static final Duration GRACE = Duration.ofHours(1);
    private static final Duration TEN_SECONDS = Duration.ofSeconds(10);

    private KafkaStreamsNexmark() {}

    @JsonIgnoreProperties(ignoreUnknown = true)
    public record Person(long id, String name, String city, String state, String dateTime) {}

    @JsonIgnoreProperties(ignoreUnknown = true)
    public record Auction(
            long id,
            String itemName,
            String description,
            long initialBid,
            long reserve,
            String dateTime,
            String expires,
            long seller,
            long category,
            String extra) {}

    @JsonIgnoreProperties(ignoreUnknown = true)
    public record Bid(
            long auction, long bidder, long price, String channel, String url, String dateTime, String extra) {
        String day() {
            return dateTime.substring(0, 10);
        }
    }

    public record Copied(long auction, long bidder, Object price, String dateTime, String extra) {}

    public record Selected(long auction, long price) {}

    public record LocalItem(String name, String city, String state, long auction) {}

    public record HotItem(long window, long auction, long num) {}

    public record NewUser(long id, String name, long window) {}

    public record Session(long start, long end, long bidder, long bids) {}

    public record Joined(Bid bid, Auction auction) {}

    public record Statistics(
            long total, long rank1, long rank2, long rank3, long minimum, long maximum, long sum, double average) {
        static final Statistics NONE = new Statistics(0, 0, 0, 0, Long.MAX_VALUE, Long.MIN_VALUE, 0, 0);

        Statistics with(Bid bid) {
            long price = bid.price;
            return new Statistics(
                    total + 1,
                    rank1 + (price < 10_000 ? 1 : 0),
                    rank2 + (price >= 10_000 && price < 1_000_000 ? 1 : 0),
                    rank3 + (price >= 1_000_000 ? 1 : 0),
                    Math.min(minimum, price),
                    Math.max(maximum, price),
                    sum + price,
                    (double) (sum + price) / (total + 1));
        }
    }

    public record TopBids(List<Bid> bids) {
        static final TopBids NONE = new TopBids(List.of());

        TopBids with(Bid bid, int most) {
            if (bids.size() == most && bids.get(most - 1).price >= bid.price) {
                return this;
            }
            List<Bid> sorted = new ArrayList<>(bids);
            sorted.add(bid);
            sorted.sort(Comparator.comparingLong(Bid::price).reversed());
            return new TopBids(sorted.size() > most ? List.copyOf(sorted.subList(0, most)) : sorted);
        }

        TopBids highest(List<Bid> others) {
            long best = bids.isEmpty() ? Long.MIN_VALUE : bids.get(0).price;
            for (Bid bid : others) {
                best = Math.max(best, bid.price);
            }
            long price = best;
            List<Bid> kept = new ArrayList<>(bids.stream().filter(bid -> bid.price == price).toList());
            others.stream().filter(bid -> bid.price == price).forEach(kept::add);
            return new TopBids(kept);
        }
    }

    public record HotItems(List<HotItem> items) {
        static final HotItems NONE = new HotItems(List.of());

        HotItems with(HotItem item) {
            long best = items.isEmpty() ? 0 : items.get(0).num;
            if (item.num < best) {
                return this;
            }
            List<HotItem> kept = item.num > best ? new ArrayList<>() : new ArrayList<>(items);
            kept.add(item);
            return new HotItems(kept);
        }
    }

    private static <T> Serde<T> serde(Class<T> type) {
        var reader = JSON.readerFor(type);
        return Serdes.serdeFrom(
                (topic, value) -> {
                    try {
                        return value == null ? null : JSON.writeValueAsBytes(value);
                    } catch (JsonProcessingException error) {
                        throw new UncheckedIOException(error);
                    }
                },
                (topic, bytes) -> {
                    try {
                        return bytes == null ? null : reader.readValue(bytes);
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                });
    }

    private static long millis(String dateTime) {
        return Instant.parse(dateTime).toEpochMilli();
    }

    /** One query: its inputs, and where its rows go. */
    private static final class Query {
        private final StreamsBuilder builder = new StreamsBuilder();
        private final String prefix;
        private final String sink;

        Query(String prefix, String sink) {
            this.prefix = prefix;
            this.sink = sink;
        }

        private KStream<String, Bid> bids() {
            var consumed = Consumed.with(Serdes.String(), serde(Bid.class))
                    .withTimestampExtractor((record, before) -> millis(((Bid) record.value()).dateTime));
            return builder.stream(prefix + "-bid", consumed);
        }

        private KStream<String, Auction> auctions() {
            var consumed = Consumed.with(Serdes.String(), serde(Auction.class))
                    .withTimestampExtractor((record, before) -> millis(((Auction) record.value()).dateTime));
            return builder.stream(prefix + "-auction", consumed);
        }

        private KStream<String, Person> persons() {
            var consumed = Consumed.with(Serdes.String(), serde(Person.class))
                    .withTimestampExtractor((record, before) -> millis(((Person) record.value()).dateTime));
            return builder.stream(prefix + "-person", consumed);
        }

        private <T> void write(KStream<String, T> rows, Class<T> type) {
            rows.to(sink, Produced.with(Serdes.String(), serde(type)));
        }

        StreamsBuilder build(String name) {
            switch (name) {
                case "q0" -> write(
                        bids().mapValues(b -> new Copied(b.auction, b.bidder, b.price, b.dateTime, b.extra)),
                        Copied.class);
                case "q1" -> {
                    BigDecimal rate = new BigDecimal("0.908");
                    write(
                            bids().mapValues(b -> new Copied(
                                    b.auction,
                                    b.bidder,
                                    rate.multiply(BigDecimal.valueOf(b.price)),
                                    b.dateTime,
                                    b.extra)),
                            Copied.class);
                }
                case "q2" -> write(
                        bids().filter((key, b) -> b.auction % 123 == 0).mapValues(b -> new Selected(b.auction, b.price)),
                        Selected.class);
                case "q3" -> localItems();
                case "q5" -> hotItems();
                case "q7" -> highestBid();
                case "q8" -> newUsers();
                case "q11" -> sessions();
                case "q15" -> biddingStatistics();
                case "q17" -> auctionStatistics();
                case "q18" -> lastBid();
                case "q19" -> topTen();
                case "q20" -> bidsWithAuction();
                default -> throw new IllegalArgumentException(name);
            }
            return builder;
        }

        private void localItems() {
            Set<String> states = Set.of("OR", "ID", "CA");
            KTable<String, Person> people = persons()
                    .filter((key, p) -> states.contains(p.state))
                    .toTable(Materialized.with(Serdes.String(), serde(Person.class)));
            KTable<String, Auction> items = auctions()
                    .filter((key, a) -> a.category == 10)
                    .toTable(Materialized.with(Serdes.String(), serde(Auction.class)));
            KTable<String, LocalItem> joined = items.join(
                    people,
                    a -> Long.toString(a.seller),
                    (a, p) -> new LocalItem(p.name, p.city, p.state, a.id),
                    Materialized.with(Serdes.String(), serde(LocalItem.class)));
            write(joined.toStream(), LocalItem.class);
        }

        private void hotItems() {
            KStream<String, HotItem> counts = bids().groupByKey(Grouped.with(Serdes.String(), serde(Bid.class)))
                    .windowedBy(TimeWindows.ofSizeAndGrace(TEN_SECONDS, DELAY).advanceBy(Duration.ofSeconds(2)))
                    .count()
                    .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
                    .toStream()
                    .map((key, num) -> KeyValue.pair(
                            Long.toString(key.window().start()),
                            new HotItem(key.window().start(), Long.parseLong(key.key()), num)));
            KTable<String, HotItems> best = counts.groupByKey(Grouped.with(Serdes.String(), serde(HotItem.class)))
                    .aggregate(
                            () -> HotItems.NONE,
                            (key, item, all) -> all.with(item),
                            Materialized.with(Serdes.String(), serde(HotItems.class)));
            write(best.toStream(), HotItems.class);
        }

        private void highestBid() {
            Serde<TopBids> top = serde(TopBids.class);
            KStream<String, TopBids> perAuction = bids().groupByKey(Grouped.with(Serdes.String(), serde(Bid.class)))
                    .windowedBy(TimeWindows.ofSizeAndGrace(TEN_SECONDS, DELAY))
                    .aggregate(
                            () -> TopBids.NONE,
                            (key, bid, all) -> all.highest(List.of(bid)),
                            Materialized.with(Serdes.String(), top))
                    .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
                    .toStream()
                    .selectKey((key, all) -> Long.toString(key.window().start()));
            KTable<String, TopBids> best = perAuction
                    .groupByKey(Grouped.with(Serdes.String(), top))
                    .aggregate(
                            () -> TopBids.NONE,
                            (key, found, all) -> all.highest(found.bids),
                            Materialized.with(Serdes.String(), top));
            write(best.toStream(), TopBids.class);
        }

        private void newUsers() {
            KStream<String, Auction> sellers = auctions()
                    .selectKey((key, a) -> Long.toString(a.seller))
                    .repartition(Repartitioned.with(Serdes.String(), serde(Auction.class)));
            KStream<String, NewUser> joined = persons().join(
                    sellers,
                    (p, a) -> {
                        long window = millis(p.dateTime) / 10_000 * 10_000;
                        return window == millis(a.dateTime) / 10_000 * 10_000 ? new NewUser(p.id, p.name, window) : null;
                    },
                    JoinWindows.ofTimeDifferenceAndGrace(TEN_SECONDS, GRACE),
                    StreamJoined.with(Serdes.String(), serde(Person.class), serde(Auction.class)));
            KTable<Windowed<String>, NewUser> once = joined.filter((key, user) -> user != null)
                    .groupByKey(Grouped.with(Serdes.String(), serde(NewUser.class)))
                    .windowedBy(TimeWindows.ofSizeAndGrace(TEN_SECONDS, GRACE))
                    .reduce((before, now) -> before);
            write(once.toStream((key, user) -> key.key() + "@" + key.window().start()), NewUser.class);
        }

        private void sessions() {
            // A session that grows or merges is another key: its record before is deleted.
            KStream<String, Session> rows = bids().groupBy(
                            (key, b) -> Long.toString(b.bidder), Grouped.with(Serdes.String(), serde(Bid.class)))
                    .windowedBy(SessionWindows.ofInactivityGapAndGrace(TEN_SECONDS, GRACE))
                    .count()
                    .toStream()
                    .map((key, count) -> KeyValue.pair(
                            key.key() + "@" + key.window().start() + "@" + key.window().end(),
                            count == null
                                    ? null
                                    : new Session(
                                            key.window().start(),
                                            key.window().end() + TEN_SECONDS.toMillis(),
                                            Long.parseLong(key.key()),
                                            count)));
            write(rows, Session.class);
        }

        private void auctionStatistics() {
            KTable<Windowed<String>, Statistics> table = bids().groupByKey(
                            Grouped.with(Serdes.String(), serde(Bid.class)))
                    .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofDays(1), Duration.ofDays(1)))
                    .aggregate(
                            () -> Statistics.NONE,
                            (key, bid, all) -> all.with(bid),
                            Materialized.with(Serdes.String(), serde(Statistics.class)));
            write(table.toStream((key, all) -> key.key() + "@" + key.window().start()), Statistics.class);
        }

        private void lastBid() {
            KTable<String, Bid> last = bids().groupBy(
                            (key, b) -> b.bidder + "@" + b.auction, Grouped.with(Serdes.String(), serde(Bid.class)))
                    .reduce(
                            (before, now) -> now.dateTime.compareTo(before.dateTime) >= 0 ? now : before,
                            Materialized.with(Serdes.String(), serde(Bid.class)));
            write(last.toStream(), Bid.class);
        }

        private void topTen() {
            KTable<String, TopBids> top = bids().groupByKey(Grouped.with(Serdes.String(), serde(Bid.class)))
                    .aggregate(
                            () -> TopBids.NONE,
                            (key, bid, all) -> all.with(bid, 10),
                            Materialized.with(Serdes.String(), serde(TopBids.class)));
            write(top.toStream(), TopBids.class);
        }

        private void biddingStatistics() {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("seen"), Serdes.String(), Serdes.ByteArray()));
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("counts"), Serdes.String(), serde(long[].class)));
            KStream<String, long[]> counts = bids().selectKey((key, b) -> b.day())
                    .repartition(Repartitioned.with(Serdes.String(), serde(Bid.class)))
                    .process(DistinctCounts::new, "seen", "counts");
            write(counts, long[].class);
        }

        private void bidsWithAuction() {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("auctions"), Serdes.String(), serde(Auction.class)));
            builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore("bids"), Serdes.String(), serde(Bid.class)));
            KStream<String, Object> both = bids().mapValues(bid -> (Object) bid)
                    .merge(auctions().filter((key, a) -> a.category == 10).mapValues(a -> (Object) a));
            write(both.process(JoinForEver::new, "auctions", "bids"), Joined.class);
        }
    }

    /** Twelve counts of a day, eight of them distinct: a store holds what was seen. */
    private static final class DistinctCounts implements Processor<String, Bid, String, long[]> {
        private static final byte[] SEEN = {1};
        private ProcessorContext<String, long[]> context;
        private KeyValueStore<String, byte[]> seen;
        private KeyValueStore<String, long[]> counts;

        @Override
        public void init(ProcessorContext<String, long[]> given) {
            context = given;
            seen = given.getStateStore("seen");
            counts = given.getStateStore("counts");
        }

        @Override
        public void process(Record<String, Bid> record) {
            Bid bid = record.value();
            long[] row = counts.get(record.key());
            row = row == null ? new long[12] : row;
            int rank = bid.price < 10_000 ? 1 : bid.price < 1_000_000 ? 2 : 3;
            row[0]++;
            row[rank]++;
            count(row, 4, rank, record.key() + "/b/", bid.bidder);
            count(row, 8, rank, record.key() + "/a/", bid.auction);
            counts.put(record.key(), row);
            context.forward(record.withValue(row));
        }

        private void count(long[] row, int first, int rank, String of, long id) {
            if (seen.putIfAbsent(of + id, SEEN) == null) {
                row[first]++;
            }
            if (seen.putIfAbsent(of + rank + "/" + id, SEEN) == null) {
                row[first + rank]++;
            }
        }
    }

    /** Bids and auctions, both kept: a bid may come before its auction. */
    private static final class JoinForEver implements Processor<String, Object, String, Joined> {
        private ProcessorContext<String, Joined> context;
        private KeyValueStore<String, Auction> auctions;
        private KeyValueStore<String, Bid> bids;
        private long number;

        @Override
        public void init(ProcessorContext<String, Joined> given) {
            context = given;
            auctions = given.getStateStore("auctions");
            bids = given.getStateStore("bids");
        }

        @Override
        public void process(Record<String, Object> record) {
            if (record.value() instanceof Bid bid) {
                Auction auction = auctions.get(record.key());
                if (auction != null) {
                    context.forward(record.withValue(new Joined(bid, auction)));
                }
                bids.put(record.key() + "/" + bid.dateTime + "/" + number++, bid);
                return;
            }
            Auction auction = (Auction) record.value();
            auctions.put(record.key(), auction);
            try (KeyValueIterator<String, Bid> waiting = bids.range(record.key() + "/", record.key() + "0")) {
                waiting.forEachRemaining(entry -> context.forward(record.withValue(new Joined(entry.value, auction))));
            }
        }
    }

    private static String run(String bootstrap, JsonNode asked, long number) throws InterruptedException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "nexmark-streams-" + asked.get("sink").asText());
        settings.put(StreamsConfig.STATE_DIR_CONFIG, asked.get("directory").asText() + "/" + number);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put("auto.offset.reset", "earliest");
        var topology = new Query(asked.get("prefix").asText(), asked.get("sink").asText()).build(asked.get("query").asText());
        AtomicLong running = new AtomicLong();
        long records = asked.get("records").asLong();
        try (KafkaStreams streams = new KafkaStreams(topology.build(settings), settings)) {
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING) {
                    running.compareAndSet(0, System.nanoTime());
                }
            });
            streams.start();
            double processed = 0;
            long changed = System.nanoTime();
            long begun = changed;
            while (processed < records || System.nanoTime() - changed < QUIET_NANOS) {
                Thread.sleep(20);
                double now = processed(streams);
                if (now == 0 && running.get() == 0) {
                    changed = System.nanoTime();
                }
                if (now != processed) {
                    // A thread may process before the whole client is RUNNING.
                    if (processed == 0 && (running.get() == 0 || changed < running.get())) {
                        running.set(changed);
                    }
                    processed = now;
                    changed = System.nanoTime();
                }
                if (streams.state() == KafkaStreams.State.ERROR || changed - begun > Duration.ofMinutes(20).toNanos()) {
                    throw new IllegalStateException("processed " + processed + " in state " + streams.state());
                }
            }
            return "{\"seconds\": " + (changed - running.get()) / 1e9 + "}";
        }
    }

    private static double processed(KafkaStreams streams) {
        double sum = 0;
        for (Metric metric : streams.metrics().values()) {
            if (metric.metricName().name().equals("process-total")
                    && metric.metricName().group().equals("stream-thread-metrics")) {
                sum += (Double) metric.metricValue();
            }
        }
        return sum;
    }

    public static void main(String[] arguments) throws IOException {
        System.out.println("{\"spark\": \"Kafka Streams\"}");
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        long number = 0;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String reply;
            try {
                reply = run(arguments[0], JSON.readTree(line), number++);
            } catch (InterruptedException | RuntimeException error) {
                reply = JSON.writeValueAsString(java.util.Map.of("error", String.valueOf(error)));
            }
            System.out.println(reply);
        }
        System.exit(0);
    }
}
