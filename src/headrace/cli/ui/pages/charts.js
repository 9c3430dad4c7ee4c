// Lines over time as inline SVG: small ones in tables, larger ones with axes.

import { h } from "./dom.js";
import { duration } from "./words.js";

const WIDTH = 100;
const HEIGHT = 24;

/** A line without axes; its text describes it to a screen reader. */
export function sparkline(values, name, format) {
  if (!values || values.length < 2) return h("span", { class: "quiet" }, "…");
  const highest = Math.max(...values);
  const text = `${name}: now ${format(values.at(-1))}, highest ${format(highest)} of the last ${values.length} collections`;
  const points = values.map((value, index) => {
    const x = 1 + ((WIDTH - 2) * index) / (values.length - 1);
    const y = HEIGHT - 2 - ((HEIGHT - 4) * value) / (highest || 1);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": text },
    h("polyline", { points: points.join(" "), class: "line" }),
  );
}

/** A line with its scale. `ages` are milliseconds before now, oldest first. */
export function chart(title, values, ages, format) {
  const times = ages.slice(-values.length);
  if (values.length < 2) {
    return h("figure", { class: "chart" }, h("figcaption", null, title), h("p", { class: "quiet" }, "The first values arrive with the next collection."));
  }
  const scale = roundedUp(Math.max(...values));
  const oldest = times[0];
  const newest = times.at(-1);
  const x = (age) => (600 * (oldest - age)) / Math.max(1, oldest - newest);
  const y = (value) => 118 - (114 * value) / scale;
  const points = values.map((value, index) => `${x(times[index]).toFixed(1)},${y(value).toFixed(1)}`);
  const text = `${title} over ${duration(oldest - newest)}: from ${format(values[0])} to ${format(values.at(-1))}, highest ${format(Math.max(...values))}`;
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", null, title, " ", h("strong", null, format(values.at(-1)))),
    h(
      "div",
      { class: "plot" },
      h("div", { class: "scale", "aria-hidden": "true" }, h("span", null, format(scale)), h("span", null, format(scale / 2)), h("span", null, "0")),
      h(
        "svg",
        { viewBox: "0 0 600 120", preserveAspectRatio: "none", role: "img", "aria-label": text },
        [4, 61, 118].map((height) => h("line", { x1: 0, x2: 600, y1: height, y2: height, class: "grid" })),
        h("path", { d: `M0,118 L${points.join(" L")} L600,118 Z`, class: "area" }),
        h("polyline", { points: points.join(" "), class: "line" }),
      ),
    ),
    h("div", { class: "times", "aria-hidden": "true" }, h("span", null, `${duration(oldest)} ago`), h("span", null, "now")),
  );
}

/** The next 1, 2 or 5 times a power of ten, so that the middle of the scale is a short number as well. */
function roundedUp(value) {
  if (value <= 0) return 10;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 6, 8, 10].find((step) => step * power >= value);
}
