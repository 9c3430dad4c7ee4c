// The screens: each takes its document and returns elements.

import { drawApplication } from "./application.js";
import { chart, sparkline } from "./charts.js";
import { h } from "./dom.js";
import { badge, fact, group, onePage, section, topic, trail, type, TYPES } from "./pieces.js";
import { drawRecords, recordsLink } from "./records.js";
import { link, table } from "./tables.js";
import { topology } from "./topology.js";
import { count, duration, NONE, plural, ranges, rate, sentence, state } from "./words.js";

function charts(lag, rates, ages, names = ["Lag", "Rate"]) {
  return h("div", { class: "charts" }, lag && chart(names[0], lag, ages, count), chart(names[1], rates, ages, rate));
}

export const SCREENS = {
  "/": {
    api: "/api/overview",
    title: () => "Overview",
    draw: (data) => [
      h("h1", { tabindex: -1 }, "Overview"),
      h(
        "dl",
        { class: "facts" },
        fact("Brokers", count(data.brokers.filter((each) => each.is_online).length), data.brokers.some((each) => !each.is_online) && "some are offline"),
        fact("Topics", count(data.topics), plural(data.partitions, "partition")),
        fact("Offline partitions", h("span", { class: data.offline ? "bad" : null }, count(data.offline))),
        fact("Under-replicated", h("span", { class: data.under_replicated ? "bad" : null }, count(data.under_replicated))),
        fact("Groups", count(data.groups), Object.entries(data.types).map(([kind, number]) => `${number} ${kind}`).join(", ")),
        fact("Members", count(data.members)),
        fact("Lag of all groups", count(data.lag)),
        fact("Produced", rate(data.rate)),
      ),
      section(
        "Attention",
        data.attention.length === 0
          ? h("p", { class: "quiet" }, "Every partition has its leader and replicas, and no group is unsettled.")
          : h(
              "ul",
              { class: "attention" },
              data.attention.map((item) =>
                h(
                  "li",
                  { class: item.level, key: `${item.kind} ${item.name}` },
                  h("span", { class: "level" }, { error: "Error", warning: "Warning", info: "Info" }[item.level]),
                  h("span", { class: "subject" }, item.kind === "group" ? "Group " : "Topic ", item.kind === "group" ? group(item.name) : topic(item.name)),
                  h("span", { class: "text" }, sentence(item.text)),
                ),
              ),
              data.attention_count > data.attention.length && h("li", { class: "quiet" }, `${count(data.attention_count - data.attention.length)} more are not shown.`),
            ),
        leftOut(data),
      ),
      section("All groups and topics", charts(data.lag_series, data.rate_series, data.ages_ms, ["Lag of all groups", "Produced"])),
      section(
        "Brokers",
        table(null, {
          caption: "Brokers",
          data: onePage(data.brokers),
          key: (row) => row.node,
          empty: "No broker is known.",
          columns: [
            { title: "Broker", cell: (row) => [count(row.node), row.is_controller && h("span", { class: "tag" }, "controller")] },
            { title: "Address", cell: (row) => (row.is_online ? row.address : h("span", { class: "bad" }, "offline")) },
            { title: "Leads", number: true, cell: (row) => count(row.leads) },
            { title: "Replicas", number: true, cell: (row) => count(row.replicas) },
            { title: "Out of sync", number: true, cell: (row) => h("span", { class: row.out_of_sync ? "bad" : null }, count(row.out_of_sync)) },
          ],
        }),
      ),
    ],
  },

  "/groups": {
    api: "/api/groups",
    title: () => "Groups",
    draw: (data, view) => [
      h("h1", { tabindex: -1 }, "Groups"),
      h(
        "div",
        { class: "tools" },
        choice(view, "type", "Type", data.types, (name) => TYPES[name] ?? name),
        choice(view, "state", "State", data.states, state),
      ),
      ...table(view, {
        caption: "Groups",
        data,
        key: (row) => row.group_id,
        filter: "Filter by name",
        empty: "There are no groups.",
        descendingFirst: ["lag", "waiting", "rate", "members"],
        columns: [
          { title: "Group", sort: "group", cell: (row) => group(row.group_id) },
          { title: "Type", sort: "type", cell: (row) => type(row.type) },
          { title: "State", sort: "state", wide: true, cell: (row) => [badge(row.state), row.reason && h("span", { class: "reason" }, sentence(row.reason))] },
          { title: "Members", sort: "members", number: true, cell: (row) => count(row.members) },
          { title: "Topics", number: true, cell: (row) => count(row.topics) },
          { title: "Lag", sort: "lag", number: true, cell: (row) => count(row.lag) },
          { title: "Oldest waits", sort: "waiting", number: true, cell: (row) => (row.waiting_ms ? `≥ ${duration(row.waiting_ms)}` : NONE) },
          { title: "Rate", sort: "rate", number: true, cell: (row) => rate(row.rate) },
          { title: "Lag over time", cell: (row) => (row.lag === null ? NONE : sparkline(row.lag_series, "Lag", count)) },
        ],
      }),
      data.refused.length > 0 && h("p", { class: "note" }, "Not described: ", data.refused.map((each) => `${each.group_id} (${each.code})`).join(", ")),
      data.left_out > 0 && h("p", { class: "note" }, `${plural(data.left_out, "group")} beyond --max-groups are not shown.`),
    ],
  },

  "/group": {
    api: "/api/group",
    title: (view) => view.query.get("id") ?? "Group",
    draw: drawGroup,
  },

  "/application": {
    api: "/api/application",
    title: (view) => `Internals of ${view.query.get("id") ?? ""}`,
    draw: drawApplication,
  },

  "/topics": {
    api: "/api/topics",
    title: () => "Topics",
    draw: (data, view) => [
      h("h1", { tabindex: -1 }, "Topics"),
      h(
        "div",
        { class: "tools" },
        h(
          "label",
          { class: "check" },
          h("input", { type: "checkbox", checked: view.query.get("internal") === "1", on: { change: (event) => view.go({ internal: event.target.checked ? "1" : null, page: null }) } }),
          "Internal topics",
        ),
      ),
      ...table(view, {
        caption: "Topics",
        data,
        key: (row) => row.name,
        filter: "Filter by name",
        empty: "There are no topics.",
        descendingFirst: ["partitions", "health", "records", "rate"],
        columns: [
          { title: "Topic", sort: "topic", cell: (row) => [topic(row.name), row.internal && h("span", { class: "tag" }, "internal")] },
          { title: "Partitions", sort: "partitions", number: true, cell: (row) => count(row.partitions) },
          { title: "Replicas", number: true, cell: (row) => count(row.replicas) },
          { title: "Health", sort: "health", cell: (row) => health(row) },
          { title: "Offsets in the log", sort: "records", number: true, cell: (row) => count(row.records) },
          { title: "Produced", sort: "rate", number: true, cell: (row) => rate(row.rate) },
          { title: "Rate over time", cell: (row) => sparkline(row.rate_series, "Rate", rate) },
        ],
      }),
      leftOut(data),
    ],
  },

  "/topic": {
    api: "/api/topic",
    title: (view) => view.query.get("name") ?? "Topic",
    draw: drawTopic,
  },

  "/records": {
    api: "/api/records",
    title: (view) => `Records of ${view.query.get("topic") ?? ""}`,
    draw: drawRecords,
    isStill: true, // records are read when a reader asks, not with each collection
  },

  "/transactions": {
    api: "/api/transactions",
    title: () => "Transactions",
    draw: drawTransactions,
  },
};

function leftOut(data) {
  return [
    data.left_out_partitions > 0 && h("p", { class: "note" }, `Offsets of ${plural(data.left_out_partitions, "partition")} beyond --max-partitions are not read.`),
    data.left_out_groups > 0 && h("p", { class: "note" }, `${plural(data.left_out_groups, "group")} beyond --max-groups are not read.`),
  ];
}

function health(row) {
  if (row.offline) return h("span", { class: "bad" }, `${plural(row.offline, "partition")} offline`);
  if (row.under_replicated) return h("span", { class: "bad" }, `${plural(row.under_replicated, "partition")} under-replicated`);
  return "Healthy";
}

function choice(view, name, title, counts, word) {
  const chosen = view.query.get(name) ?? "";
  const options = [...new Set([...Object.keys(counts), ...(chosen ? [chosen] : [])])];
  return h(
    "label",
    { class: "filter", key: name },
    h("span", null, title),
    h(
      "select",
      { on: { change: (event) => view.go({ [name]: event.target.value || null, page: null }) } },
      h("option", { value: "" }, "All"),
      options.map((each) => h("option", { value: each, selected: each === chosen }, `${word(each)} (${count(counts[each] ?? 0)})`)),
    ),
  );
}

function drawGroup(data, view) {
  const isStreams = data.type === "streams" || data.topology !== null; // a classic group may run streams
  const modern = data.epoch !== null;
  return [
    trail("/groups", "Groups"),
    h("h1", { tabindex: -1 }, data.group_id, " ", type(data.type), badge(data.state)),
    data.obstacles.length > 0
      ? h(
          "ul",
          { class: "obstacles" },
          data.obstacles.map((each) =>
            h("li", { key: each.why }, h("p", null, h("strong", null, "Why: "), sentence(each.why)), each.do && h("p", null, h("strong", null, "Do: "), h("code", null, each.do))),
          ),
        )
      : data.reason && h("p", { class: "note" }, sentence(data.reason)),
    h(
      "dl",
      { class: "facts" },
      fact("Members", count(data.members.count), data.members_behind ? `${plural(data.members_behind, "member")} behind` : null),
      isStreams
        ? fact("Tasks", count(data.roles.active ?? 0), `${count(data.roles.standby ?? 0)} standby, ${count(data.roles.warmup ?? 0)} warm-up`)
        : fact("Assigned partitions", count(data.roles.partition ?? 0)),
      fact("Lag", count(data.lag), data.waiting_ms > 0 && `oldest waits ≥ ${duration(data.waiting_ms)}`),
      fact("Rate", rate(data.rate)),
      modern && fact("Group epoch", count(data.epoch), data.topology_epoch !== null && `topology epoch ${data.topology_epoch}`),
      modern && fact("Assignment epoch", count(data.assignment_epoch), data.assignment_epoch < data.epoch ? "a new target is being computed" : "target is current"),
      modern && fact("Moves to make", h("span", { class: data.pending ? "warn" : null }, count(data.pending)), "target against current"),
      data.assignor && fact("Assignor", data.assignor),
      fact("Rebalances", count(data.rebalances), `${count(data.joined)} joined, ${count(data.left)} left since this page's server began`),
    ),
    section("Over time", data.lag === null ? h("p", { class: "quiet" }, "The group has committed no offsets.") : charts(data.lag_series, data.rate_series, data.ages_ms)),
    section(
      "Members",
      !data.is_described && h("p", { class: "note" }, "Members of this type of group are not shown."),
      data.is_described &&
        table(view, {
          caption: "Members",
          prefix: "members.",
          data: data.members,
          key: (row) => row.member_id,
          filter: "Filter members",
          empty: "The group has no members.",
          descendingFirst: ["tasks", "pending", "lag", "rate"],
          columns: [
            { title: "Member", sort: "member", cell: member },
            { title: "Host", sort: "host", cell: (row) => row.host.replace(/^\//, "") },
            modern && { title: "Epoch", sort: "epoch", number: true, cell: (row) => [row.is_away ? "away" : count(row.epoch), row.is_behind && !row.is_away && h("small", { class: "warn" }, "behind")] },
            { title: isStreams ? "Tasks" : "Partitions", sort: "tasks", wide: true, cell: tasks },
            { title: "Lag", sort: "lag", number: true, cell: (row) => count(row.lag) },
            { title: "Rate", sort: "rate", number: true, cell: (row) => rate(row.rate) },
          ].filter(Boolean),
        }),
      isStreams && data.is_described && h("p", { class: "legend" }, "Tasks by subtopology: ", h("span", { class: "chip active" }, "active"), " ", h("span", { class: "chip standby" }, "standby"), " ", h("span", { class: "chip warmup" }, "warm-up"), ". Moves: ", h("ins", null, "to come"), ", ", h("del", null, "to leave"), "."),
    ),
    data.topology?.length > 0 && section("Topology", topology(data.topology), data.endpoints > 0 && h("p", null, link("/application", { id: data.group_id }, "Internals of the application"), ": rates, watermarks, state and durations of its subtopologies, and where each task runs.")),
    section(
      "Partitions",
      table(view, {
        caption: "Partitions",
        prefix: "partitions.",
        data: data.partitions,
        key: (row) => `${row.topic} ${row.partition}`,
        filter: "Filter by topic",
        empty: "The group has neither committed offsets nor assigned partitions.",
        descendingFirst: ["lag", "waiting", "rate"],
        columns: [
          { title: "Partition", sort: "partition", cell: (row) => [topic(row.topic), "-", row.partition] },
          { title: "Read by", sort: "member", cell: (row) => row.client_id || row.member_id || NONE },
          { title: "Committed", number: true, cell: (row) => [count(row.committed), row.lost > 0 && h("small", { class: "bad" }, `${count(row.lost)} lost`)] },
          { title: "End", number: true, cell: (row) => count(row.end) },
          { title: "Lag", sort: "lag", number: true, cell: (row) => count(row.lag) },
          { title: "Oldest waits", sort: "waiting", number: true, cell: (row) => (row.waiting_ms ? `≥ ${duration(row.waiting_ms)}` : NONE) },
          { title: "Rate", sort: "rate", number: true, cell: (row) => rate(row.rate) },
          { title: "Lag over time", cell: (row) => sparkline(row.lag_series, "Lag", count) },
          { title: "Rate over time", cell: (row) => sparkline(row.rate_series, "Rate", rate) },
        ],
      }),
    ),
  ];
}

function drawTransactions(data) {
  const partition = (each) => [topic(each.topic), "-", each.partition];
  return [
    h("h1", { tabindex: -1 }, "Transactions"),
    section(
      "Readers that wait",
      h("p", { class: "note" }, "Readers of committed records stop at the oldest open transaction of a partition. A transaction hangs if its coordinator will not end it."),
      table(null, {
        caption: "Partitions with an open transaction in front of records",
        data: onePage(data.held),
        key: (row) => `${row.topic} ${row.partition}`,
        empty: "No open transaction holds back records.",
        columns: [
          { title: "Partition", cell: partition },
          { title: "Offsets behind it", number: true, cell: (row) => count(row.records) },
          { title: "State", cell: (row) => (row.hangs ? h("span", { class: "badge error" }, h("span", { class: "dot", "aria-hidden": "true" }), "Hanging") : badge(row.state ?? "Unknown")) },
          { title: "Transactional id", wide: true, cell: (row) => row.transactional_id ?? h("em", { class: "quiet" }, "no coordinator knows it") },
          { title: "Since offset", number: true, cell: (row) => count(row.start_offset) },
          { title: "What to do", wide: true, cell: (row) => row.do },
        ],
      }),
      data.held_count > data.held.length && h("p", { class: "note" }, `${plural(data.held_count, "partition")} had records behind their last stable offset at the last collection.`),
    ),
    section(
      "In progress",
      table(null, {
        caption: "Transactions in progress, the oldest first",
        data: onePage(data.transactions),
        key: (row) => row.transactional_id,
        empty: "No transaction is in progress.",
        columns: [
          { title: "Transactional id", cell: (row) => row.transactional_id },
          { title: "State", cell: (row) => badge(row.state) },
          { title: "Open for", number: true, cell: (row) => h("span", { class: row.is_overdue ? "bad" : null }, duration(row.age_ms)) },
          { title: "Times out after", number: true, cell: (row) => duration(row.timeout_ms) },
          { title: "Producer", number: true, cell: (row) => [count(row.producer_id), h("small", null, `epoch ${row.producer_epoch}`)] },
          { title: "Partitions", wide: true, cell: (row) => [row.partitions.map((each, index) => [index > 0 && ", ", partition(each)]), row.partitions_count > row.partitions.length && ` and ${count(row.partitions_count - row.partitions.length)} more`] },
        ],
      }),
      data.count > data.transactions.length && h("p", { class: "note" }, `${count(data.count - data.transactions.length)} more are not shown.`),
    ),
  ];
}

function member(row) {
  const details = [row.instance_id && `static: ${row.instance_id}`, row.rack && `rack ${row.rack}`, row.subscribed_regex && `subscribed to ${row.subscribed_regex}`];
  return [
    h("span", { class: "name" }, row.client_id || row.member_id),
    h("small", { class: "id" }, row.member_id),
    details.filter(Boolean).map((text) => h("small", null, text)),
    row.user_data.map((each) => h("small", { class: "data" }, `${each.role}: ${each.text}`)),
  ];
}

const ROLES = { active: "active", standby: "standby", warmup: "warm-up", partition: "" };

function tasks(row) {
  if (row.tasks.length === 0) return NONE;
  return h(
    "ul",
    { class: "chips" },
    row.tasks.map((each) => {
      const moves = [
        each.coming.length > 0 && h("ins", { title: "Of the target assignment, not taken over yet" }, "+", ranges(each.coming)),
        each.leaving.length > 0 && h("del", { title: "Not of the target assignment, not released yet" }, "−", ranges(each.leaving)),
      ];
      return h(
        "li",
        { class: `chip ${each.role}`, key: `${each.role} ${each.of}` },
        ROLES[each.role] && each.role !== "active" && h("span", { class: "role" }, ROLES[each.role], " "),
        h("b", null, each.of),
        each.kept.length > 0 && [": ", ranges(each.kept)],
        moves.map((move) => move && [" ", move]),
      );
    }),
  );
}

function drawTopic(data, view) {
  return [
    trail("/topics", "Topics"),
    h("h1", { tabindex: -1 }, data.name, data.internal && h("span", { class: "tag" }, "internal")),
    h(
      "dl",
      { class: "facts" },
      fact("Partitions", count(data.count)),
      fact("Health", health(data)),
      data.is_selected && fact("Offsets in the log", count(data.records)),
      data.is_selected && fact("Produced", rate(data.rate)),
      data.topic_id && fact("Topic id", h("span", { class: "id" }, data.topic_id)),
    ),
    !data.is_selected && h("p", { class: "note" }, "Offsets of this topic are not read (--topic-filter, --topic-exclude)."),
    data.is_selected && section("Over time", charts(null, data.rate_series, data.ages_ms, [null, "Produced"])),
    section(
      "Groups with positions in this topic",
      table(null, {
        caption: "Groups with positions in this topic",
        data: onePage(data.groups),
        key: (row) => row.group_id,
        empty: "No group has committed offsets here.",
        columns: [
          { title: "Group", cell: (row) => group(row.group_id) },
          { title: "Type", cell: (row) => type(row.type) },
          { title: "State", cell: (row) => badge(row.state) },
          { title: "Lag", number: true, cell: (row) => count(row.lag) },
        ],
      }),
    ),
    section(
      "Partitions",
      table(view, {
        caption: "Partitions",
        prefix: "partitions.",
        data: data.partitions,
        key: (row) => row.partition,
        empty: "The topic has no partitions.",
        descendingFirst: ["records", "rate"],
        columns: [
          { title: "Partition", sort: "partition", cell: (row) => count(row.partition) },
          { title: "Leader", sort: "leader", cell: (row) => (row.leader < 0 ? h("span", { class: "bad" }, "none") : [count(row.leader), row.leader_epoch !== null && h("small", null, `epoch ${row.leader_epoch}`)]) },
          { title: "Replicas", cell: (row) => row.replicas.join(", ") },
          { title: "In sync", cell: (row) => h("span", { class: row.in_sync.length < row.replicas.length ? "bad" : null }, row.in_sync.join(", ") || "none") },
          { title: "Start", number: true, cell: (row) => count(row.start) },
          { title: "End", number: true, cell: (row) => [count(row.end), row.stable_end !== null && row.stable_end < row.end && h("small", { class: "warn" }, `stable up to ${count(row.stable_end)}`)] },
          { title: "Produced", sort: "rate", number: true, cell: (row) => rate(row.rate) },
          { title: "Rate over time", cell: (row) => sparkline(row.rate_series, "Rate", rate) },
          { title: "Records", cell: (row) => recordsLink(data.name, row.partition, `Records of ${row.partition}`) },
        ],
      }),
    ),
  ];
}
