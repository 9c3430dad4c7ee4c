package headrace.interop;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** How often each word came: (id, word) is grouped anew by word, counted in a store, and told in a topic. */
final class WordTopology {
    static final String STORE = "counts";

    /** A word that no instance can digest. */
    private static final String POISON = "poison";

    private WordTopology() {}

    /**
     * Subtopology 0 reads {@code source} and writes the repartition topic, subtopology 1 counts.
     * What is {@code added} makes another topology of it: "lengths", a third subtopology; "join", a second source that
     * has to be as wide as the first. With {@code byId} there is one subtopology, which counts ids: its state hangs on
     * the source's own partitions.
     */
    static Topology of(String source, String sink, boolean onDisk, String added, boolean byId) {
        var builder = new StreamsBuilder();
        KStream<String, String> words = builder.stream(source, Consumed.with(Serdes.String(), Serdes.String()));
        KStream<String, String> keyed = byId ? words : words.selectKey((id, word) -> wholesome(word));
        keyed.groupByKey(Grouped.with("by-word", Serdes.String(), Serdes.String()))
                .count(store(STORE, onDisk))
                .toStream()
                .to(sink, Produced.with(Serdes.String(), Serdes.Long()));
        if (added.equals("join")) {
            words.toTable().join(builder.table(source + "-2"), (one, other) -> one);
        }
        if (added.equals("lengths")) {
            words.selectKey((id, word) -> String.valueOf(word.length()))
                    .groupByKey(Grouped.with("by-length", Serdes.String(), Serdes.String()))
                    .count(store("lengths", onDisk));
        }
        return builder.build();
    }

    private static String wholesome(String word) {
        if (word.equals(POISON)) {
            throw new IllegalArgumentException("poison");
        }
        return word;
    }

    private static Materialized<String, Long, KeyValueStore<Bytes, byte[]>> store(String name, boolean onDisk) {
        var supplier = onDisk ? Stores.persistentKeyValueStore(name) : Stores.inMemoryKeyValueStore(name);
        return Materialized.<String, Long>as(supplier).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long());
    }
}
