// Nodes and edges as a graph from left to right.

import { h } from "./dom.js";

const WIDTH = 220;
const GAP_X = 64;
const GAP_Y = 18;
const LINE = 17;
const LETTERS = 25;

/**
 * @param nodes { id, kind, title, lines, href?, isBad? } by id; `lines` are texts.
 * @param edges Pairs of ids.
 */
export function graph(nodes, edges, label) {
  place([...nodes.values()], edges);
  const width = Math.max(...[...nodes.values()].map((node) => node.x)) + WIDTH;
  const height = Math.max(...[...nodes.values()].map((node) => node.y + node.height));
  return h(
    "div",
    { class: "graph", tabindex: 0, role: "group", "aria-label": label },
    h(
      "svg",
      { width: width + 4, height: height + 4, viewBox: `-2 -2 ${width + 4} ${height + 4}` },
      edges.map(([from, to]) => curve(nodes.get(from), nodes.get(to))),
      [...nodes.values()].map(box),
    ),
  );
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
