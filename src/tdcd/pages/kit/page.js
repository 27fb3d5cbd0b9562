// What pages do: say which numbers of a chart are next to the pointer, and print with everything unfolded.
// Nothing here reads markup: what it shows is text.

const MOST_LINES = 12;

const hint = document.createElement("p");
hint.className = "hint";
hint.setAttribute("role", "status");
hint.hidden = true;
document.body.append(hint);

/** Four figures, as in the words of the page. */
function figure(value) {
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e6) return Math.round(value).toLocaleString("en");
  return size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(3) : value.toPrecision(4);
}

function place(chart, x) {
  const map = chart.log ? Math.log : (value) => value;
  const part = (map(x) - map(chart.from)) / (map(chart.to) - map(chart.from));
  return chart.left + part * (chart.right - chart.left);
}

/** The index of the x that is drawn nearest to `at`. */
function nearest(chart, xs, at) {
  let best = 0;
  xs.forEach((x, index) => {
    if (Math.abs(place(chart, x) - at) < Math.abs(place(chart, xs[best]) - at)) best = index;
  });
  return best;
}

function line(kind, text) {
  const part = document.createElement("span");
  part.className = kind;
  part.textContent = text;
  return part;
}

/** Show what the curves of a drawing are where the pointer is. */
function point(drawing, event) {
  // The browser would show its description over the numbers.
  drawing.querySelector(":scope > title")?.remove();
  const chart = JSON.parse(drawing.dataset.chart);
  const curves = chart.curves.filter((curve) => curve.y.length);
  if (!curves.length) return;
  const box = drawing.getBoundingClientRect();
  const at = ((event.clientX - box.left) / box.width) * drawing.viewBox.baseVal.width;
  const xs = (curve) => curve.x ?? chart.curves[0].x;
  const x = curves.map((curve) => xs(curve)[nearest(chart, xs(curve), at)])
    .reduce((best, one) => (Math.abs(place(chart, one) - at) < Math.abs(place(chart, best) - at) ? one : best));
  const lines = curves.slice(0, MOST_LINES).map((curve) => {
    const index = nearest(chart, xs(curve), at);
    const where = xs(curve)[index] === x ? "" : ` (${chart.along} ${Number(xs(curve)[index].toPrecision(4)).toLocaleString("en")})`;
    return line("", `${curve.label}: ${figure(curve.y[index])}${where}`);
  });
  if (curves.length > MOST_LINES) lines.push(line("along", `and ${curves.length - MOST_LINES} more`));
  hint.replaceChildren(line("along", `${chart.along} ${Number(x.toPrecision(6)).toLocaleString("en")}`), ...lines);
  hint.hidden = false;
  const [left, top] = [event.clientX + 14, event.clientY + 14];
  hint.style.left = `${Math.max(0, Math.min(left, innerWidth - hint.offsetWidth - 8))}px`;
  hint.style.top = `${top + hint.offsetHeight > innerHeight ? event.clientY - hint.offsetHeight - 10 : top}px`;
  const middle = place(chart, x).toFixed(1);
  drawing.querySelector(".cursor").setAttribute("d", `M${middle} ${chart.top}V${chart.bottom}`);
}

let pointed = null;

function leave() {
  pointed?.querySelector(".cursor")?.removeAttribute("d");
  pointed = null;
  hint.hidden = true;
}

document.addEventListener("pointermove", (event) => {
  const drawing = event.target.closest?.("[data-chart]") ?? null;
  if (drawing !== pointed) leave();
  pointed = drawing;
  if (drawing) point(drawing, event);
});
document.addEventListener("pointerleave", leave);
addEventListener("scroll", leave, { passive: true });

document.querySelector(".print")?.addEventListener("click", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
  print();
});
