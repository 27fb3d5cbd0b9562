// Several runs side by side: a table, and one figure of all of them.

import { Chart, COLOURS, Pace } from "./chart.js";
import { html, say } from "./dom.js";
import { bytes, columnTitle, count, duration, figure } from "./units.js";

const MOST_LINES = 32;
const HEAD = ["run", "state", "round", "training loss", "held-out loss", "time left", "sent"];

export class Together {
  constructor(node, toggle) {
    this.node = node;
    this.toggle = toggle;
    this.rows = new Map();
    this.choice = html("select", { "aria-label": "Figure to compare" });
    this.choice.addEventListener("change", () => {
      this.pace = new Pace();
      this.draw();
    });
    this.chart = new Chart("All runs");
    this.pace = new Pace();
    this.body = html("tbody");
    this.more = html("p", { class: "soft", hidden: "" });
    const head = html("tr", {}, ...HEAD.map((title) => html("th", { scope: "col" }, title)));
    node.append(
      html("h2", {}, "Side by side"),
      html("div", { class: "pair" },
        html("div", {}, html("label", { class: "choice" }, "Figure ", this.choice), this.chart.node),
        html("div", {}, html("div", { class: "scroll" }, html("table", { class: "numbers" }, html("thead", {}, head), this.body)),
          html("p", { class: "soft" }, "A click on a name opens or closes the run below."), this.more)));
  }

  update(runs, hidden, isOpen) {
    this.runs = runs;
    this.node.hidden = runs.length < 2;
    this.more.hidden = !hidden;
    say(this.more, `${count(hidden)} more ${hidden === 1 ? "run is" : "runs are"} not shown: give fewer folders.`);
    if (this.node.hidden) return;
    for (const [id, row] of this.rows) {
      if (!runs.some((run) => run.id === id)) {
        row.node.remove();
        this.rows.delete(id);
      }
    }
    runs.forEach((run, place) => this.showRow(run, place));
    this.showChoices(runs);
    this.mark(isOpen);
    this.draw();
  }

  showRow({ id, run }, place) {
    if (!this.rows.has(id)) {
      const button = html("button", { type: "button" });
      button.addEventListener("click", () => this.toggle(id));
      const swatch = html("i", { class: `swatch colour${place % COLOURS}` });
      const cells = HEAD.slice(1).map(() => html("td"));
      const row = { node: html("tr", {}, html("th", { scope: "row" }, swatch, button), ...cells), button, cells };
      this.rows.set(id, row);
      this.body.append(row.node);
    }
    const { button, cells } = this.rows.get(id);
    say(button, run.name);
    button.title = [run.group, run.name].filter(Boolean).join("/");
    const texts = [
      run.state, `${count(run.round ?? 0)}${run.rounds ? `/${count(run.rounds)}` : ""}`, figure(run.latest?.train_loss),
      figure(run.latest?.test_loss), duration(run.left_s),
      run.latest ? bytes(Object.values(run.latest.bytes).reduce((sum, one) => sum + one, 0)) : "–",
    ];
    cells.forEach((cell, index) => say(cell, texts[index]));
  }

  /** Which figures there are to compare; the held-out loss is what people ask for first. */
  showChoices(runs) {
    const names = [...new Set(runs.flatMap((run) => run.points.columns))];
    if (String(names) === this.names) return;
    this.names = String(names);
    const chosen = this.choice.value || (names.includes("loss.test") ? "loss.test" : "loss.train");
    this.choice.replaceChildren(...names.map((name) => html("option", { value: name }, columnTitle(name))));
    this.choice.value = chosen;
  }

  mark(isOpen) {
    for (const [id, row] of this.rows) row.button.setAttribute("aria-expanded", String(isOpen(id)));
  }

  draw() {
    if (this.node.hidden) return;
    const name = this.choice.value;
    const content = [name, ...this.runs.map((run) => `${run.id}.${run.points.revision}`)].join(" ");
    const points = this.runs.reduce((sum, run) => sum + run.points.rows.length, 0);
    if (content === this.drawn || !this.pace.isDue(points)) return;
    this.drawn = content;
    this.chart.caption.textContent = name ? columnTitle(name) : "";
    this.chart.update(this.runs.slice(0, MOST_LINES).map((run, place) =>
      run.points.series(name, { name: run.run.name, colour: place % COLOURS, dash: Math.floor(place / COLOURS) })), { legend: false });
  }
}
