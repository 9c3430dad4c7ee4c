// The topology of a streams group as a graph: topics and subtopologies from left to right, with the state of each.

import { h } from "./dom.js";
import { graph } from "./graph.js";
import { address } from "./tables.js";
import { count, plural, rate } from "./words.js";

/** The graph, and the same in words for those who do not see it. */
export function topology(subtopologies) {
  const nodes = new Map();
  const edges = [];
  const repartition = new Set(subtopologies.flatMap((each) => [...each.repartition_sources.map((t) => t.name), ...each.repartition_sinks.map((t) => t.name)]));
  const topicNode = (topic) => {
    const id = `topic ${topic.name}`;
    if (!nodes.has(id)) {
      const kind = repartition.has(topic.name) ? "repartition topic" : "source topic";
      const facts = [topic.partitions === null ? "does not exist" : plural(topic.partitions, "partition"), topic.rate !== null && rate(topic.rate)];
      nodes.set(id, { id, kind, title: topic.name, lines: [facts.filter(Boolean).join(", ")], href: address("/topic", { name: topic.name }), isBad: topic.partitions === null });
    }
    return id;
  };
  for (const each of subtopologies) {
    const id = `subtopology ${each.id}`;
    const inputs = [...each.sources, ...each.repartition_sources];
    const tasks = Math.max(0, ...inputs.map((topic) => topic.partitions ?? 0));
    nodes.set(id, {
      id,
      kind: "subtopology",
      title: `Subtopology ${each.id}`,
      lines: [plural(tasks, "task"), ...each.changelogs.map((topic) => `⛁ ${topic.name}${topic.partitions === null ? " (missing)" : ""}`)],
      isBad: each.changelogs.some((topic) => topic.partitions === null),
    });
    for (const topic of inputs) edges.push([topicNode(topic), id]);
    for (const topic of each.repartition_sinks) edges.push([id, topicNode(topic)]);
  }
  return [
    graph(nodes, edges, "Graph of the topology; it scrolls sideways"),
    h("p", { class: "legend" }, "⛁ marks the changelog topic of a state. Output topics are not part of the protocol, so they are not in the graph."),
  ];
}
