// Curves over rounds, as SVG.

import { html, keep, say, set, svg } from "./dom.js";
import { count, figure } from "./units.js";

export const COLOURS = 8;
const DASHES = ["", "6 3", "1.5 2.5", "7 2 1.5 2"];
const WIDTH = 360, HEIGHT = 220, LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 32;

/** Ticks of 1, 2 or 5 times a power of ten, about `most` of them. */
function linearTicks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((size) => size >= rough);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) ticks.push(index * step + 0);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  const parts = high / low > 1000 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
    for (const part of parts) {
      const tick = part * 10 ** power;
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  const every = Math.ceil(ticks.length / 8);
  return ticks.filter((_, index) => index % every === 0);
}

const short = (value) => String(Number(value.toPrecision(6)) + 0);

/** The range of some values; null if there is none. */
function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low > high ? null : [low, high];
}

/** A scale from values to pixels, with its ticks. */
function scale(bounds, from, to, { log = false, most = 5 } = {}) {
  let [low, high] = bounds;
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  const map = log ? Math.log : (value) => value;
  const [start, length] = [map(low), map(high) - map(low)];
  const place = (value) => from + ((map(value) - start) / length) * (to - from);
  return { place, ticks: log ? logTicks(low, high) : linearTicks(low, high, most) };
}

const MANY_POINTS = 200, SELDOM_MS = 5000;

/**
 * When curves are drawn anew: few points at once, many once in some seconds. Every drawing leaves its paths in the
 * browser's memory until garbage is collected, and of a long curve a second's points cannot be seen anyway.
 */
export class Pace {
  constructor() {
    this.last = -Infinity;
  }

  isDue(points) {
    const now = performance.now();
    if (points > MANY_POINTS && now - this.last < SELDOM_MS) return false;
    this.last = now;
    return true;
  }
}

/** The elements of a series: its shade, its curve and its last point. */
const newLine = () => svg("g", {}, svg("path"), svg("path"), svg("circle"));

/** One figure. A series: {name, colour, dash, x, y, low, high}; low and high are null where a point is one line. */
export class Chart {
  constructor(title) {
    this.title = title;
    this.grid = svg("path", { class: "grid" });
    this.axis = svg("path", { class: "axis" });
    this.unit = svg("text", { class: "end", x: WIDTH - RIGHT, y: HEIGHT - 2 });
    this.nothing = svg("text", { class: "middle", x: WIDTH / 2, y: HEIGHT / 2 });
    this.ticks = svg("g");
    this.axes = svg("g", { class: "axes" }, this.grid, this.axis, this.ticks, this.unit, this.nothing);
    this.lines = svg("g");
    this.cursor = svg("path", { class: "cursor" });
    this.drawing = svg("svg", { class: "chart", role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
    this.drawing.append(this.axes, this.lines, this.cursor);
    this.caption = html("span", {}, title);
    this.legend = html("p", { class: "legend" });
    this.node = html("figure", {}, html("figcaption", {}, this.caption), this.drawing, this.legend);
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    this.series = [];
    this.at = null;
  }

  update(series, { legend = true } = {}) {
    this.series = series.filter((one) => one.x.length);
    this.hasLegend = legend;
    const xs = range(this.series.flatMap((one) => [one.x[0], one.x[one.x.length - 1]]));
    const ys = range(this.series.flatMap((one) => [...(range(one.low ?? one.y) ?? []), ...(range(one.high ?? one.y) ?? [])]));
    this.drawing.setAttribute("aria-label", `${this.title}: ${this.words()}`);
    const isEmpty = xs === null || ys === null;
    say(this.nothing, isEmpty ? "no figure yet" : "");
    say(this.unit, isEmpty ? "" : "round");
    if (isEmpty) {
      for (const part of [this.ticks, this.lines]) part.replaceChildren();
      for (const part of [this.grid, this.axis]) set(part, { d: "" });
      return;
    }
    const log = ys[0] > 0 && ys[1] / ys[0] > 10;
    this.x = scale(xs, LEFT, WIDTH - RIGHT, { most: 6 });
    this.y = scale(ys, HEIGHT - BOTTOM, TOP, { log });
    this.drawAxes();
    keep(this.lines, this.series, newLine, (node, one) => this.drawLine(node, one));
    this.showWords();
  }

  drawAxes() {
    set(this.axis, { d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` });
    set(this.grid, { d: this.y.ticks.map((tick) => `M${LEFT} ${this.y.place(tick).toFixed(1)}H${WIDTH - RIGHT}`).join("") });
    const up = this.y.ticks.map((tick) => [{ class: "end", x: LEFT - 6, y: (this.y.place(tick) + 3.5).toFixed(1) }, short(tick)]);
    const along = this.x.ticks.filter(Number.isInteger).map((tick) => {
      const x = this.x.place(tick);
      const isLast = x > WIDTH - RIGHT - 14;
      return [{ class: isLast ? "end" : "middle", x: (isLast ? WIDTH - 1 : x).toFixed(1), y: HEIGHT - BOTTOM + 15 }, count(tick)];
    });
    keep(this.ticks, [...up, ...along], () => svg("text"), (node, [place, text]) => {
      set(node, place);
      say(node, text);
    });
  }

  drawLine(node, one) {
    const [band, line, end] = node.children;
    set(band, { class: `band colour${one.colour}` });
    set(line, { class: `line colour${one.colour}`, "stroke-dasharray": DASHES[one.dash ?? 0] });
    // Without a look at what is there: asked for, a long text stays in memory until garbage is collected.
    band.setAttribute("d", one.low ? this.bars(one) : "");
    line.setAttribute("d", this.path(one));
    const last = one.y.length - 1;
    const isThere = one.y[last] !== null;
    const [x, y] = isThere ? [this.x.place(one.x[last]), this.y.place(one.y[last])] : [0, 0];
    set(end, { class: `end colour${one.colour}`, cx: x.toFixed(1), cy: y.toFixed(1), r: isThere ? 3 : 0 });
  }

  /** Through all points; interrupted where there is no figure. */
  path(one) {
    let pen = "M";
    return one.y.map((value, index) => {
      if (value === null) {
        pen = "M";
        return "";
      }
      const step = `${pen}${this.x.place(one.x[index]).toFixed(1)} ${this.y.place(value).toFixed(1)}`;
      pen = "L";
      return step;
    }).join("");
  }

  /** From the lowest to the highest of each point's lines. */
  bars(one) {
    return one.x.map((x, index) => {
      if (one.low[index] === null || one.low[index] === one.high[index]) return "";
      return `M${this.x.place(x).toFixed(1)} ${this.y.place(one.low[index]).toFixed(1)}V${this.y.place(one.high[index]).toFixed(1)}`;
    }).join("");
  }

  point(event) {
    this.at = null;
    if (event !== null && this.x) {
      const box = this.drawing.getBoundingClientRect();
      this.at = ((event.clientX - box.left) / box.width) * WIDTH;
    }
    this.showWords();
  }

  /** The point of a series that is next to the pointer; the last one if that is elsewhere. */
  nearest(one) {
    if (this.at === null) return one.x.length - 1;
    let best = 0;
    one.x.forEach((x, index) => {
      if (Math.abs(this.x.place(x) - this.at) < Math.abs(this.x.place(one.x[best]) - this.at)) best = index;
    });
    return best;
  }

  words() {
    return this.series.map((one) => `${one.name} ${figure(one.y[this.nearest(one)])}`).join(", ");
  }

  showWords() {
    if (!this.series.length) return;
    const round = this.series[0].x[this.nearest(this.series[0])];
    const shown = this.hasLegend || this.at !== null ? this.series : [];
    const entries = shown.slice(0, 8).map((one) => [`swatch colour${one.colour}`, `${one.name} ${figure(one.y[this.nearest(one)])}`]);
    const words = entries.length ? [["", `round ${count(round)}`], ...entries] : [];
    keep(this.legend, words, () => html("span", {}, html("i"), html("span")), (node, [swatch, text]) => {
      set(node.firstChild, { class: swatch });
      say(node.lastChild, text);
    });
    this.cursor.setAttribute("d", this.at === null ? "" : `M${this.x.place(round).toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}`);
  }
}
