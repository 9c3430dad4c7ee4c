// The router, the stream of frames, and the refresh of the screen that is shown.

import { h, patch } from "./dom.js";
import { SCREENS } from "./screens.js";
import { duration } from "./words.js";

const main = document.getElementById("main");
const freshness = document.getElementById("freshness");
const announcement = document.getElementById("announcement");
const outage = document.getElementById("outage");
const pause = document.getElementById("pause");

let last = null; // the document of the screen
let isPaused = false;
let stream = null;
let timer = 0;
let fetching = null;
let isWanted = false;
let shown = ""; // the address of the screen, without its fragment

const view = {
  get query() {
    return new URLSearchParams(location.search);
  },
  /** Change parameters of the address and draw again; without a new entry in the history. */
  go(changes, afterMs = 0) {
    const query = view.query;
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined) query.delete(name);
      else query.set(name, value);
    }
    const text = query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
    shown = location.pathname + location.search;
    clearTimeout(timer);
    timer = setTimeout(refresh, afterMs);
  },
};

/** Fetch and draw the screen of the address. One request at a time; a wish in between is kept. */
async function refresh() {
  if (fetching) {
    isWanted = true;
    return;
  }
  const screen = SCREENS[location.pathname];
  const where = location.pathname + location.search;
  if (!screen) return;
  fetching = new AbortController();
  const begun = performance.now();
  try {
    const response = await fetch(screen.api + location.search, { signal: fetching.signal });
    const data = await response.json();
    if (where !== location.pathname + location.search) isWanted = true;
    else {
      draw(screen, data);
      // For the browser's own tools and the benchmark; only the last one is kept.
      performance.clearMeasures("refresh");
      performance.measure("refresh", { start: begun });
    }
  } catch (error) {
    if (error.name !== "AbortError") showOutage("The server of this page does not answer. Is headrace ui running?");
  } finally {
    fetching = null;
    if (isWanted) {
      isWanted = false;
      refresh();
    }
  }
}

function draw(screen, data) {
  if (data.error?.message) {
    patch(main, [h("h1", { tabindex: -1 }, screen.title(view)), h("p", { class: "note" }, data.error.message)]);
    return;
  }
  last = data;
  if (data.collected_at_ms === null) {
    patch(main, [h("h1", { tabindex: -1 }, screen.title(view)), h("p", { class: "quiet" }, "The first collection is under way.")]);
  } else {
    patch(main, screen.draw(data, view).flat(2).filter(Boolean));
  }
  showOutage(data.is_up || data.version === 0 ? "" : `The cluster does not answer; the values are the last known ones. ${data.error}`);
  showAge();
}

function showOutage(text) {
  if (outage.textContent === text) return;
  // Announced once when it begins, and once when it ends; not with each collection.
  if (!text) announcement.textContent = "The cluster answers again.";
  outage.textContent = text;
  outage.hidden = !text;
}

function showAge() {
  if (isPaused) freshness.textContent = "Paused";
  else if (last?.collected_at_ms) freshness.textContent = `Updated ${duration(Math.max(0, Date.now() - last.collected_at_ms))} ago`;
  else freshness.textContent = "";
}

/** Show the screen of the address, from its top. */
function navigate(isFirst) {
  shown = location.pathname + location.search;
  const screen = SCREENS[location.pathname];
  for (const each of document.querySelectorAll("header nav a")) {
    const section = each.getAttribute("href");
    const isHere = section === "/" ? location.pathname === "/" : location.pathname.startsWith(section.slice(0, -1)) || (section === "/topics" && location.pathname === "/records") || (section === "/groups" && location.pathname === "/application");
    if (isHere) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  document.title = `${screen ? screen.title(view) : "Not found"} · Headrace`;
  if (!screen) {
    patch(main, [h("h1", { tabindex: -1 }, "Not found"), h("p", null, "There is no such page.")]);
    return;
  }
  if (!isFirst) {
    fetching?.abort();
    patch(main, [h("h1", { tabindex: -1 }, screen.title(view)), h("p", { class: "quiet" }, "Loading…")]);
    main.querySelector("h1").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  refresh();
}

/** Listen while the page is visible: a browser has six connections for a server, and each stream holds one. */
function listen() {
  stream?.close();
  stream = null;
  if (document.hidden || isPaused) return;
  stream = new EventSource("/api/frames");
  stream.addEventListener("frame", (event) => {
    if (!SCREENS[location.pathname]?.isStill && JSON.parse(event.data).version !== last?.version) refresh();
  });
  stream.addEventListener("error", () => {
    if (stream?.readyState !== EventSource.OPEN) showOutage("The connection to the server of this page is lost; it is tried again.");
    // A refusal closes the stream for good.
    if (stream?.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
  stream.addEventListener("open", () => {
    // A lost connection may be back without a new frame: the message about it has to go.
    if (!outage.hidden) refresh();
  });
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[data-link]");
  if (!anchor || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.pushState(null, "", anchor.getAttribute("href"));
  navigate(false);
});
window.addEventListener("popstate", () => {
  // Also for a new fragment, as from "Skip to content": the screen stays, and the focus is on its way there.
  if (shown !== location.pathname + location.search) navigate(false);
});
document.addEventListener("visibilitychange", listen);
pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.textContent = isPaused ? "Resume" : "Pause";
  listen();
  showAge();
});
setInterval(showAge, 1000);
navigate(true);
listen();
