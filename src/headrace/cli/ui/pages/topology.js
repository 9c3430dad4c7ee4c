// The topology of a streams group as a graph: topics and subtopologies from left to right, with the state of each.

import { h } from "./dom.js";
import { address } from "./tables.js";
import { count, plural, rate } from "./words.js";

const WIDTH = 220;
const GAP_X = 64;
const GAP_Y = 18;
const LINE = 17;
const LETTERS = 25;

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
  place([...nodes.values()], edges);
  const width = Math.max(...[...nodes.values()].map((node) => node.x)) + WIDTH;
  const height = Math.max(...[...nodes.values()].map((node) => node.y + node.height));
  return [
    h(
      "div",
      { class: "graph", tabindex: 0, role: "group", "aria-label": "Graph of the topology; it scrolls sideways" },
      h(
        "svg",
        { width: width + 4, height: height + 4, viewBox: `-2 -2 ${width + 4} ${height + 4}` },
        edges.map(([from, to]) => curve(nodes.get(from), nodes.get(to))),
        [...nodes.values()].map(box),
      ),
    ),
    h("p", { class: "legend" }, "⛁ marks the changelog topic of a state. Output topics are not part of the protocol, so they are not in the graph."),
  ];
}

/** Columns by the longest way from a source; a cycle ends at the number of nodes. */
function place(nodes, edges) {
  const column = new Map(nodes.map((node) => [node.id, 0]));
  for (let round = 0; round < nodes.length; round++) {
    let isDone = true;
    for (const [from, to] of edges) {
      const wanted = Math.min(column.get(from) + 1, nodes.length);
      if (column.get(to) < wanted) {
        column.set(to, wanted);
        isDone = false;
      }
    }
    if (isDone) break;
  }
  const used = [...new Set(column.values())].sort((a, b) => a - b);
  const bottoms = new Map();
  for (const node of nodes) {
    const index = used.indexOf(column.get(node.id));
    node.height = 30 + LINE * (node.lines.length + 1);
    node.x = index * (WIDTH + GAP_X);
    node.y = bottoms.get(index) ?? 0;
    bottoms.set(index, node.y + node.height + GAP_Y);
  }
  const tallest = Math.max(...bottoms.values());
  for (const node of nodes) node.y += (tallest - bottoms.get(used.indexOf(column.get(node.id)))) / 2;
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + from.height / 2, to.x, to.y + to.height / 2];
  const bend = Math.max(24, Math.abs(x2 - x1) / 2);
  return h(
    "g",
    { class: "edge" },
    h("path", { d: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2 - 7},${y2}` }),
    h("path", { class: "tip", d: `M${x2 - 8},${y2 - 4.5} L${x2},${y2} L${x2 - 8},${y2 + 4.5} Z` }),
  );
}

function box(node) {
  const label = (text, line, name) => h("text", { x: 12, y: 20 + LINE * line, class: name }, text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text, text.length > LETTERS && h("title", null, text));
  const content = [
    h("rect", { width: WIDTH, height: node.height, rx: node.kind === "subtopology" ? 8 : 18 }),
    label(node.kind === "subtopology" ? "" : node.kind, 0, "kind"),
    label(node.title, node.kind === "subtopology" ? 0 : 1, "title"),
    node.lines.map((text, index) => label(text, index + (node.kind === "subtopology" ? 1 : 2), "line-text")),
  ];
  const group = { class: `node ${node.kind.split(" ")[0]}${node.isBad ? " missing" : ""}`, transform: `translate(${node.x},${node.y})` };
  // A name for screen readers in one piece, with the full text of what is cut.
  const words = [node.kind === "subtopology" ? node.title : `${node.kind} ${node.title}`, ...node.lines].join(", ");
  return h("g", group, node.href ? h("a", { href: node.href, "data-link": true, "aria-label": words }, content) : h("g", { role: "img", "aria-label": words }, content));
}
