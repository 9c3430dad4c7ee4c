// Numbers, times and states in words.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const NONE = "–";

export function count(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) < 10_000_000 ? whole.format(value) : short.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value >= 10 || value === 0 ? `${count(value)}/s` : `${value.toFixed(1)}/s`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const steps = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  for (; value >= 1000 && index < steps.length - 1; index++) value /= 1000;
  return `${index === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${steps[index]}`;
}

/** Durations of milliseconds, as of micro-batches. */
export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  return value < 10_000 ? `${count(value)} ms` : duration(value);
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** "NotReady" → "Not ready", as a person writes it. */
export function state(name) {
  const spaced = name.replace(/([a-z])([A-Z])/g, (_, before, after) => `${before} ${after.toLowerCase()}`);
  return spaced.charAt(0).toUpperCase() + spaced.slice(1);
}

/** The mood of a state: a class of the style sheet. */
export function mood(name) {
  const plain = name.toLowerCase().replace(/[_-]/g, "");
  if (plain === "stable" || plain === "running") return "ok";
  if (plain === "notready" || plain === "dead" || plain === "failed") return "error";
  if (plain === "empty" || plain === "stopped") return "idle";
  return "busy";
}

export function ranges(pairs) {
  return pairs.map(([first, last]) => (first === last ? `${first}` : last === first + 1 ? `${first}, ${last}` : `${first}–${last}`)).join(", ");
}

/** A sentence of the server with a capital letter. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
