// Records of a partition as they are: text is shown as text, JSON is indented without touching its tokens.

import { h } from "./dom.js";
import { address, link } from "./tables.js";
import { count, NONE, plural } from "./words.js";

/** JSON with line breaks; strings and numbers stay as they were written, which JSON.parse would not guarantee. */
export function indent(text) {
  let depth = 0;
  let isString = false;
  let result = "";
  for (let index = 0; index < text.length; index++) {
    const character = text[index];
    if (isString) {
      result += character;
      if (character === "\\") result += text[++index] ?? "";
      else if (character === '"') isString = false;
    } else if (character === '"') {
      isString = true;
      result += character;
    } else if (character === "{" || character === "[") {
      const rest = text.slice(index + 1).trimStart();
      if (rest[0] === "}" || rest[0] === "]") {
        result += character + rest[0];
        index = text.indexOf(rest[0], index + 1);
      } else {
        result += `${character}\n${"  ".repeat(++depth)}`;
      }
    } else if (character === "}" || character === "]") {
      result += `\n${"  ".repeat(--depth)}${character}`;
    } else if (character === ",") {
      result += `,\n${"  ".repeat(depth)}`;
    } else if (character === ":") {
      result += ": ";
    } else if (!/\s/.test(character)) {
      result += character;
    }
  }
  return result;
}

function bytes(data) {
  if (data.kind === "null") return h("em", { class: "quiet" }, "null");
  if (data.size === 0) return h("em", { class: "quiet" }, "empty");
  const note = `${data.kind === "json" ? "JSON" : data.kind}, ${plural(data.size, "byte")}${data.is_cut ? ", cut" : ""}`;
  const text = data.kind === "json" ? indent(data.text) : data.text;
  if (!text.includes("\n") && text.length <= 80) return [h("code", null, text), h("small", null, note)];
  return h("details", null, h("summary", null, h("code", null, data.text.slice(0, 80)), data.text.length > 80 && "…", h("small", null, note)), h("pre", { tabindex: 0 }, text));
}

const time = (ms) => (ms === null ? NONE : new Date(ms).toISOString().replace("T", " ").replace("Z", ""));

function select(view, name, title, options) {
  const chosen = view.query.get(name) ?? options[0][0];
  return h(
    "label",
    { class: "filter", key: name },
    h("span", null, title),
    h("select", { on: { change: (event) => view.go({ [name]: event.target.value, before: null }) } }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))),
  );
}

export function drawRecords(data, view) {
  const oldest = data.records.at(-1)?.offset;
  const partitions = Array.from({ length: Math.min(data.partitions, 2000) }, (_, number) => [`${number}`, `${number}`]);
  return [
    h("p", { class: "trail" }, link("/topics", {}, "Topics"), " › ", link("/topic", { name: data.topic }, data.topic), h("span", { "aria-hidden": "true" }, " ›")),
    h("h1", { tabindex: -1 }, `Records of ${data.topic}-${data.partition}`),
    h(
      "div",
      { class: "tools" },
      select(view, "partition", "Partition", partitions),
      select(view, "count", "At most", [["20", "20 records"], ["50", "50 records"], ["200", "200 records"]]),
      select(view, "as", "Shown as", [["auto", "JSON, text or hex"], ["text", "Text"], ["hex", "Hex"]]),
      select(view, "isolation", "Transactions", [["read_committed", "Committed records"], ["read_uncommitted", "All records"]]),
      h(
        "span",
        { class: "pages" },
        h("button", { type: "button", on: { click: () => view.go({ before: null }) } }, view.query.get("before") ? "Newest" : "Read again"),
        h("button", { type: "button", disabled: oldest === undefined || oldest <= data.start, on: { click: () => view.go({ before: oldest }) } }, "Older"),
      ),
    ),
    h("p", { class: "note" }, `The log has offsets ${count(data.start)} to ${count(data.end)} (exclusive). Times are UTC. This screen does not update by itself.`, data.is_cut && " Larger records are left out: 8 MiB are read at most."),
    data.records.length === 0
      ? h("p", { class: "quiet" }, "There are no records here.")
      : h(
          "table",
          { role: "table", class: "records" },
          h("caption", { class: "hidden" }, `Records of ${data.topic}-${data.partition}, the newest first`),
          h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["Offset", "Time", "Key", "Value", "Headers"].map((title) => h("th", { scope: "col" }, title)))),
          h(
            "tbody",
            { role: "rowgroup" },
            data.records.map((record) =>
              h(
                "tr",
                { key: `${record.offset}`, role: "row" },
                h("th", { scope: "row", role: "rowheader" }, count(record.offset)),
                h("td", { role: "cell", "data-title": "Time", class: "time" }, time(record.timestamp_ms)),
                h("td", { role: "cell", "data-title": "Key", class: "wide" }, bytes(record.key)),
                h("td", { role: "cell", "data-title": "Value", class: "wide" }, bytes(record.value)),
                h(
                  "td",
                  { role: "cell", "data-title": "Headers", class: record.headers.length === 0 ? "none" : "wide" },
                  record.headers.length === 0 ? NONE : h("ul", { class: "plain" }, record.headers.map((header) => h("li", null, h("b", null, header.name), " ", bytes(header.value)))),
                  record.headers_count > record.headers.length && h("small", null, `${plural(record.headers_count - record.headers.length, "header")} more`),
                ),
              ),
            ),
          ),
        ),
  ];
}

/** The link to the records of a partition. */
export function recordsLink(topic, partition, text) {
  return h("a", { href: address("/records", { topic, partition }), "data-link": true }, text);
}
