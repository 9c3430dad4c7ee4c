// Tables with headers that sort, a filter and pages. Where the reader is stands in the address: it can be shared.

import { h } from "./dom.js";
import { count, NONE } from "./words.js";

/**
 * @param view { query, go }: the parameters of the address, and a function that changes some of them.
 * @param columns { title, sort?, number?, cell(row), wide? } each; `sort` is the server's name of the column.
 */
export function table(view, { caption, prefix = "", data, columns, key, empty, filter, descendingFirst = [] }) {
  const sorted = (data.sort || "").replace(/^-/, "");
  const descending = (data.sort || "").startsWith("-");
  const header = (column) => {
    if (!column.sort) return h("th", { scope: "col", class: column.number && "number" }, column.title);
    const isSorted = column.sort === sorted;
    const nextDescending = isSorted ? !descending : descendingFirst.includes(column.sort);
    return h(
      "th",
      { scope: "col", class: column.number && "number", "aria-sort": isSorted ? (descending ? "descending" : "ascending") : null },
      h(
        "button",
        {
          type: "button",
          class: "sort",
          on: { click: () => view.go({ [`${prefix}sort`]: (nextDescending ? "-" : "") + column.sort, [`${prefix}page`]: null }) },
        },
        column.title,
        h("span", { class: "arrow", "aria-hidden": "true" }, isSorted ? (descending ? "▼" : "▲") : ""),
      ),
    );
  };
  const tools = [];
  if (filter && (data.pages > 1 || data.count > 8 || view.query.get(`${prefix}q`))) {
    tools.push(
      h(
        "label",
        { class: "filter", key: "filter" },
        h("span", null, filter),
        h("input", {
          type: "search",
          maxlength: 200,
          value: view.query.get(`${prefix}q`) ?? "",
          autocomplete: "off",
          spellcheck: "false",
          on: { input: (event) => view.go({ [`${prefix}q`]: event.target.value || null, [`${prefix}page`]: null }, 250) },
        }),
      ),
    );
  }
  if (data.pages > 1) tools.push(pages(view, prefix, data, caption));
  return [
    tools.length > 0 && h("div", { class: "tools", key: `${prefix}tools` }, tools),
    data.rows.length === 0
      ? h("p", { class: "quiet", key: `${prefix}empty` }, view?.query.get(`${prefix}q`) ? "Nothing matches the filter." : empty)
      : h(
          "table",
          { key: `${prefix}table`, role: "table" },
          h("caption", { class: "hidden" }, caption),
          h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(header))),
          h(
            "tbody",
            { role: "rowgroup" },
            data.rows.map((row) =>
              h(
                "tr",
                { key: key(row), role: "row" },
                columns.map((column, index) => {
                  const content = column.cell(row);
                  if (index === 0) return h("th", { scope: "row", role: "rowheader", class: "first" }, content);
                  // A phone leaves out cells without a value.
                  const isNone = content === NONE || content?.textContent === "…";
                  const names = [column.number && "number", column.wide && "wide", isNone && "none"].filter(Boolean).join(" ");
                  return h("td", { role: "cell", class: names || null, "data-title": column.title }, content);
                }),
              ),
            ),
          ),
        ),
  ];
}

function pages(view, prefix, data, caption) {
  const go = (page) => () => view.go({ [`${prefix}page`]: page || null });
  const first = data.page * 100 + 1;
  return h(
    "nav",
    { class: "pages", key: "pages", "aria-label": `Pages: ${caption}` },
    h("button", { type: "button", disabled: data.page === 0, on: { click: go(data.page - 1) } }, "Previous"),
    h("span", null, `${count(first)}–${count(first + data.rows.length - 1)} of ${count(data.count)}`),
    h("button", { type: "button", disabled: data.page >= data.pages - 1, on: { click: go(data.page + 1) } }, "Next"),
  );
}

export function link(path, parameters, ...children) {
  return h("a", { href: address(path, parameters), "data-link": true }, children);
}

export function address(path, parameters) {
  const query = new URLSearchParams(parameters).toString();
  return query ? `${path}?${query}` : path;
}
