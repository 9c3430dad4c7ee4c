// Pieces that several screens are made of.

import { h } from "./dom.js";
import { link } from "./tables.js";
import { mood, state } from "./words.js";

export const TYPES = { streams: "Streams", consumer: "Consumer", classic: "Classic", share: "Share" };

export const badge = (name) => h("span", { class: `badge ${mood(name)}` }, h("span", { class: "dot", "aria-hidden": "true" }), state(name));
export const type = (name) => h("span", { class: `type ${name}` }, TYPES[name] ?? name);
export const fact = (title, value, note) => h("div", { class: "fact" }, h("dt", null, title), h("dd", null, value, note && h("small", null, note)));
export const group = (name) => link("/group", { id: name }, name === "" ? h("em", null, "(empty name)") : name);
export const onePage = (rows) => ({ rows, pages: 1, count: rows.length });
export const topic = (name) => link("/topic", { name }, name);

export function section(title, ...children) {
  return h("section", { key: title, "aria-label": title }, h("h2", null, title), children);
}

export function trail(path, title, parameters = {}) {
  return h("p", { class: "trail" }, link(path, parameters, title), h("span", { "aria-hidden": "true" }, " ›"));
}
