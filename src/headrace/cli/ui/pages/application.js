// The internals of one application: its topology as a graph with live figures, its instances, and where each task runs.

import { h } from "./dom.js";
import { graph } from "./graph.js";
import { badge, fact, onePage, section, trail } from "./pieces.js";
import { address, table } from "./tables.js";
import { bytes, count, duration, milliseconds, NONE, plural, rate, sentence } from "./words.js";

export function drawApplication(data, view) {
  const answering = data.instances.filter((each) => !each.problem);
  return [
    trail("/group", data.group_id, { id: data.group_id }),
    h("h1", { tabindex: -1 }, `Internals of ${data.group_id}`, " ", badge(data.state)),
    hints(data, answering),
    answering.length > 0 && [
      h(
        "dl",
        { class: "facts" },
        fact("Instances", count(answering.length), answering.length < data.members ? `of ${plural(data.members, "member")}` : null),
        fact("Records processed", rate(data.records_per_second)),
        fact("Lag", count(data.lag)),
        fact("State", bytes(data.state_bytes), plural(data.state_keys, "key")),
        fact("Late rows", loud(data.late_rows)),
        fact("Skipped", loud(data.skipped)),
        fact("Dead letters", loud(data.dead_letters)),
        fact("Guarantee", data.guarantee === "at_least_once" ? "At least once" : "Exactly once"),
      ),
      section("Topology", drawTopology(data)),
      section(
        "Micro-batches",
        table(null, {
          caption: "Micro-batches by subtopology",
          data: onePage(data.subtopologies),
          key: (row) => row.id,
          empty: "The application has no subtopologies.",
          columns: [
            { title: "Subtopology", cell: (row) => row.id },
            { title: "Processed", number: true, cell: (row) => rate(row.records_per_second) },
            { title: "Micro-batches", number: true, cell: (row) => [count(row.batches), row.failed_batches > 0 && h("small", { class: "bad" }, `${count(row.failed_batches)} failed`)] },
            { title: "p50", number: true, cell: (row) => milliseconds(row.batch_ms.p50) },
            { title: "p99", number: true, cell: (row) => milliseconds(row.batch_ms.p99) },
            { title: "Longest", number: true, cell: (row) => milliseconds(row.batch_ms.max) },
            { title: "Stages, p50 and p99", wide: true, cell: stages },
          ],
        }),
        h("p", { class: "legend" }, "Durations of the last 100 micro-batches of each instance; with several instances those of the slowest one."),
      ),
    ],
    section(
      "Instances",
      table(null, {
        caption: "Instances",
        data: onePage(data.instances),
        key: (row) => row.endpoint,
        empty: "No member of the group has announced an endpoint.",
        columns: [
          { title: "Instance", cell: (row) => [h("span", { class: "name" }, row.client_id || row.endpoint), h("small", { class: "id" }, row.endpoint)] },
          { title: "State", wide: true, cell: (row) => (row.problem ? h("span", { class: "bad" }, sentence(row.problem)) : [badge(row.state), row.reasons.map((each) => h("span", { class: "reason" }, sentence(each)))]) },
          { title: "Process", cell: (row) => (row.problem ? NONE : [row.host, h("small", null, `process ${row.pid}, for ${duration(row.up_ms)}`)]) },
          { title: "Tasks", number: true, cell: (row) => (row.problem ? NONE : [count(row.tasks), row.standby > 0 && h("small", null, `${count(row.standby)} standby`), row.opening.length > 0 && h("small", { class: "warn" }, `${count(row.opening.length)} being opened`)]) },
          { title: "Processed", number: true, cell: (row) => rate(row.records_per_second) },
          { title: "State on disk", number: true, cell: (row) => bytes(row.state_disk_bytes) },
          { title: "Tasks lost", number: true, cell: (row) => (row.problem ? NONE : plural(row.memberships_lost, "time")) },
          { title: "Version", cell: (row) => row.version ?? NONE },
        ],
      }),
    ),
    answering.length > 0 &&
      section(
        "Tasks",
        table(view, {
          caption: "Tasks",
          prefix: "tasks.",
          data: data.tasks,
          key: (row) => `${row.subtopology} ${row.partition}`,
          filter: "Filter tasks",
          empty: "No task runs.",
          descendingFirst: ["lag", "state", "late", "dead"],
          columns: [
            { title: "Task", sort: "task", cell: (row) => `${row.subtopology}_${row.partition}` },
            { title: "Runs on", sort: "instance", wide: true, cell: (row) => [row.instance, h("small", null, [`slot ${row.slot}`, row.place].filter(Boolean).join(" on "))] },
            { title: "Lag", sort: "lag", number: true, cell: (row) => count(row.lag) },
            { title: "Watermark", sort: "watermark", cell: (row) => moment(row.watermark_ms) },
            { title: "State", sort: "state", number: true, cell: (row) => [bytes(row.state_bytes), h("small", null, plural(row.state_keys, "key"))] },
            { title: "Late rows", sort: "late", number: true, cell: (row) => loud(row.late_rows) },
            { title: "Dead letters", sort: "dead", number: true, cell: (row) => loud(row.dead_letters) },
          ],
        }),
        h("p", { class: "legend" }, "Late rows and dead letters are counted since the start of the instance. A watermark is the event time up to which a task has seen its input."),
      ),
  ];
}

/** Why figures are missing, with what to do about it. */
function hints(data, answering) {
  const hint = [];
  if (data.instances.length === 0) {
    hint.push("No member of this group has announced an endpoint. Set application.server of the application; the page asks it for its internals.");
  } else if (data.silent_members > 0) {
    hint.push(`${plural(data.silent_members, "member")} announced no endpoint: the figures below are without ${data.silent_members === 1 ? "it" : "them"}.`);
  }
  if (answering.length > 0 && answering.length < data.instances.length) hint.push(`${plural(data.instances.length - answering.length, "instance")} did not answer: the figures below are without ${data.instances.length - answering.length === 1 ? "it" : "them"}.`);
  if (data.left_out > 0) hint.push(`${plural(data.left_out, "instance")} more are not asked.`);
  return hint.map((text) => h("p", { class: "note", key: text }, text));
}

const loud = (value) => h("span", { class: value > 0 ? "warn" : null }, count(value));

// A browser has no date beyond the year 275760.
const moment = (ms) => (ms === null || Math.abs(ms) > 8.64e15 ? NONE : new Date(ms).toISOString().replace("T", " ").replace(".000Z", "Z"));

function stages(row) {
  if (row.stages_ms.length === 0) return NONE;
  return h(
    "ul",
    { class: "chips" },
    row.stages_ms.map((each) => h("li", { class: "chip", key: each.stage }, h("b", null, each.stage), ` ${milliseconds(each.p50)}, ${milliseconds(each.p99)}`)),
  );
}

function drawTopology(data) {
  const nodes = new Map();
  const edges = [];
  const topicNode = (name, kind) => {
    const id = `topic ${name}`;
    const known = data.topics[name];
    // The output of one subtopology may be the source of another one.
    if (nodes.has(id)) return id;
    const facts = [known.partitions === null ? "does not exist" : plural(known.partitions, "partition"), known.rate !== null && rate(known.rate)];
    nodes.set(id, { id, kind, title: name, lines: [facts.filter(Boolean).join(", ")], href: address("/topic", { name }), isBad: known.partitions === null });
    return id;
  };
  for (const each of data.subtopologies) {
    const id = `subtopology ${each.id}`;
    nodes.set(id, { id, kind: "subtopology", title: each.id, lines: figures(each), isBad: false });
    for (const source of each.sources) for (const name of source.topics) edges.push([topicNode(name, source.kind === "repartition" ? "repartition topic" : "source topic"), id]);
    for (const sink of each.sinks) {
      if (sink.kind === "topic" || sink.kind === "repartition") {
        edges.push([id, topicNode(sink.name, sink.kind === "repartition" ? "repartition topic" : "output topic")]);
      } else {
        const target = `${sink.kind} ${sink.name}`;
        nodes.set(target, { id: target, kind: sink.kind === "table" ? "output table" : sink.kind, title: sink.name, lines: [], isBad: false });
        edges.push([id, target]);
      }
    }
  }
  return [
    graph(nodes, edges, "Graph of the topology with live figures; it scrolls sideways"),
    h("p", { class: "legend" }, "⛁ marks a store, “to” the watermark of the task that is furthest behind. Rates of topics are those of their producers, rates of subtopologies those of the application."),
  ];
}

function figures(each) {
  return [
    `${plural(each.tasks, "task")}, ${rate(each.records_per_second)}, lag ${count(each.lag)}`,
    each.batch_ms.p50 !== null && `p50 ${milliseconds(each.batch_ms.p50)}, p99 ${milliseconds(each.batch_ms.p99)}`,
    ...each.operators.map((operator) => `⛁ ${operator.store}: ${operator.kind}`),
    each.state_keys > 0 && `${plural(each.state_keys, "key")}, ${bytes(each.state_bytes)}`,
    each.watermark_ms !== null && `to ${moment(each.watermark_ms).replace(/\.\d+/, "")}`,
    each.late_rows > 0 && plural(each.late_rows, "late row"),
    each.dead_letters > 0 && plural(each.dead_letters, "dead letter"),
  ].filter(Boolean);
}
