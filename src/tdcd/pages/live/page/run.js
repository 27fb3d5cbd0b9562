// One run: its state, figures, curves, federation, time and bytes.

import { byteBars, timeBars } from "./bars.js";
import { Chart, Pace } from "./chart.js";
import { html, keep, say } from "./dom.js";
import { federation } from "./federation.js";
import { column, columnTitle, count, counted, duration, figure, metric } from "./units.js";

const KINDS = { simulation: "simulation", hub: "hub", trial: "trial of all parties", nothing: "no run yet" };

/** The points of a run's curve, which arrive bit by bit. */
export class Points {
  constructor() {
    this.version = -1;
    this.rows = [];
    this.columns = [];
    this.stride = 1;
    this.revision = 0; // another number whenever there is something new to draw
  }

  take(curve) {
    if (!curve) return;
    const isNews = curve.version !== this.version || curve.points.length !== 1 || curve.first + 1 !== this.rows.length ||
      String(curve.points[0]) !== String(this.rows[curve.first]);
    this.rows.length = curve.first;
    for (const point of curve.points) this.rows.push(point);
    [this.version, this.columns, this.stride] = [curve.version, curve.columns, curve.stride];
    if (isNews) this.revision += 1;
  }

  series(name, more) {
    const place = this.columns.indexOf(name);
    const pick = (offset) => this.rows.map((row) => row[1 + offset + place]);
    const all = this.columns.length;
    return {
      x: place < 0 ? [] : this.rows.map((row) => row[0]), y: pick(0), ...more,
      low: this.stride > 1 ? pick(all) : null, high: this.stride > 1 ? pick(2 * all) : null,
    };
  }
}

/** A part of a run that is made anew only when what it shows has changed. */
class Part {
  constructor(title, draw, tag = "div") {
    this.draw = draw;
    this.body = html(tag, { class: "body" });
    this.node = html("section", { hidden: "" }, html("h3", {}, title), this.body);
    this.shown = "";
  }

  update(facts, isThere) {
    const text = JSON.stringify(facts);
    if (text === this.shown) return;
    this.shown = text;
    this.node.hidden = !isThere;
    this.body.replaceChildren(...(isThere ? this.draw(facts) : []));
  }
}

export class Run {
  constructor(id) {
    this.id = id;
    this.points = new Points();
    this.charts = new Map();
    this.pace = new Pace();
    this.badge = html("span", { class: "badge" });
    this.name = html("span");
    this.facts = html("p", { class: "facts" });
    this.words = html("p", { class: "notice", role: "status", hidden: "" });
    this.problems = html("div");
    this.progress = html("progress", { max: 1, value: 0 });
    this.cards = html("dl", { class: "cards" });
    this.figures = html("div", { class: "figures" });
    this.federation = new Part("Federation", federation);
    this.time = new Part("Work and waiting", ({ time }) => timeBars(time), "dl");
    this.bytes = new Part("Bytes sent", ({ sent, round, evaluated }) => byteBars(sent, round, evaluated), "dl");
    this.node = html("article", { class: "run", "data-run": id },
      html("h2", {}, this.name, " ", this.badge), this.facts, this.words, this.problems, this.progress, this.cards,
      this.figures, this.federation.node, this.time.node, this.bytes.node);
  }

  update(run) {
    this.run = run;
    this.points.take(run.curve);
    this.badge.className = `badge ${run.state}`;
    say(this.badge, run.state);
    say(this.name, run.name);
    const samples = run.samples ? counted(run.samples, "sample") : "";
    say(this.facts, [run.group, run.title, KINDS[run.kind], samples].filter(Boolean).join(" · "));
    this.words.hidden = !run.words;
    this.words.className = `notice ${["running", "finished", "empty", "reading"].includes(run.state) ? "" : "alarm"}`;
    say(this.words, run.words);
    this.problems.replaceChildren(...run.problems.map((problem) => html("p", { class: "notice alarm" }, problem)));
    const [round, rounds] = [run.round ?? 0, run.rounds ?? 0];
    this.progress.hidden = !rounds;
    this.progress.value = rounds ? Math.min(1, round / rounds) : 0;
    this.showCards(run, round, rounds);
    this.federation.update({ silos: run.silos ?? [], num_silos: run.num_silos ?? 0 }, run.silos?.length);
    this.time.update({ time: run.time ?? [] }, run.time?.length);
    const { bytes: sent, round: measured, evaluation_bytes: evaluated } = run.latest ?? {};
    this.bytes.update({ sent, round: measured, evaluated }, run.latest);
  }

  showCards(run, round, rounds) {
    if (!run.latest && !rounds) {
      this.cards.replaceChildren();
      return;
    }
    const cards = [["round", `${count(round)}${rounds ? ` of ${count(rounds)}` : ""}`]];
    if (run.left_s !== null && run.left_s !== undefined) cards.push(["time left", duration(run.left_s)]);
    if (run.latest) {
      cards.push(["training time", duration(run.latest.seconds)], ["training loss", figure(run.latest.train_loss)]);
      if (run.latest.test_loss !== null) cards.push(["held-out loss", figure(run.latest.test_loss)]);
      const split = run.latest.metrics.test ? "test" : "train";
      for (const [name, value] of Object.entries(run.latest.metrics[split] ?? {})) {
        cards.push([columnTitle(`${name}.${split}`), figure(value)]);
      }
    }
    keep(this.cards, cards, () => html("div", { class: "card" }, html("dt"), html("dd")), (node, [title, value]) => {
      say(node.firstChild, title);
      say(node.lastChild, value);
    });
  }

  /** Draw the curves, if there is something new since they were drawn last. */
  draw() {
    if (this.drawn === this.points.revision || !this.pace.isDue(this.points.rows.length)) return;
    this.drawn = this.points.revision;
    const names = [...new Set(this.points.columns.map((name) => column(name)[0]))];
    for (const name of names) {
      if (!this.charts.has(name)) {
        this.charts.set(name, new Chart(name === "loss" ? "Loss" : metric(name)));
        this.figures.append(this.charts.get(name).node);
      }
      const own = this.points.columns.filter((one) => column(one)[0] === name);
      this.charts.get(name).update(own.map((one) => {
        const samples = column(one)[1];
        return this.points.series(one, { name: samples, colour: samples === "training" ? 0 : 1, dash: 0 });
      }));
    }
  }
}
