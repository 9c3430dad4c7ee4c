// Elements from data. Text becomes text nodes only: no name of a topic or group is ever parsed as markup, and the
// policy of Trusted Types (access.py) forbids every way around that.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "polyline", "line", "rect", "circle", "g", "text", "title"]);

/** An element with attributes and children; `on` holds handlers by event, `key` identifies it among its siblings. */
export function h(tag, attributes, ...children) {
  const isSvg = SVG_TAGS.has(tag) || (tag === "a" && children.flat(9).some((child) => child instanceof SVGElement));
  const node = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      listen(node, value);
    } else if (name === "key") {
      node.key = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(node, children);
  return node;
}

// The listener looks the handler up, so that `patch` can replace it.
function listen(node, handlers) {
  node.handlers = handlers;
  node.listening ??= new Set();
  for (const type of Object.keys(handlers ?? {})) {
    if (!node.listening.has(type)) node.addEventListener(type, (event) => node.handlers?.[type]?.(event));
    node.listening.add(type);
  }
}

function append(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(node, child);
    else node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Make the children of `parent` equal to `wanted`, changing as little as possible: focus and selection survive. */
export function patch(parent, wanted) {
  const focused = document.activeElement;
  patchChildren(parent, wanted.filter((child) => child instanceof Node));
  if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

function patchChildren(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (child.key !== undefined) keyed.set(child.key, child);
  let next = parent.firstChild;
  for (const child of wanted) {
    const match = child.key !== undefined ? keyed.get(child.key) : next && next.key === undefined ? next : null;
    if (match && isSameKind(match, child)) {
      if (match === next) next = next.nextSibling;
      else parent.insertBefore(match, next);
      keyed.delete(child.key);
      patchNode(match, child);
    } else {
      parent.insertBefore(child, next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

function isSameKind(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && a.key === b.key;
}

function patchNode(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!wanted.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (wanted.handlers || old.handlers) listen(old, wanted.handlers);
  if (old.nodeName === "INPUT" || old.nodeName === "SELECT") {
    patchChildren(old, [...wanted.childNodes]);
    // A field that is being edited is its user's.
    if (old !== document.activeElement && old.value !== wanted.value) old.value = wanted.value;
    return;
  }
  patchChildren(old, [...wanted.childNodes]);
}
