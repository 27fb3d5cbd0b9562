// Numbers as people read them; the same words as in the report.

const BYTE_UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB"];
const TITLES = { auc: "AUC", rmse: "RMSE", r2: "R²", d2: "D²", mae: "MAE" };

export const count = (number) => number.toLocaleString("en");

export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export function figure(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e6) return count(Math.round(value));
  return size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(3) : value.toPrecision(4);
}

export function bytes(number) {
  let power = 0;
  while (number >= 999.5 && power < BYTE_UNITS.length - 1) [number, power] = [number / 1000, power + 1];
  return `${power && number < 99.95 ? number.toPrecision(3) : Math.round(number)} ${BYTE_UNITS[power]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function metric(name) {
  return TITLES[name] ?? name;
}

/** A column of the history, such as "accuracy.test": its figure and its samples. */
export function column(name) {
  const dot = name.lastIndexOf(".");
  return [name.slice(0, dot), name.slice(dot + 1) === "test" ? "held-out" : "training"];
}

export const columnTitle = (name) => column(name).map((part, place) => (place ? part : metric(part))).reverse().join(" ");
