// Asks once in a second for the parts of the page that have changed, and shows them.

import "./page.js";
import { show } from "./dom.js";

const EVERY_MS = 1000;
const SOON_MS = 50; // while the server has not read all yet

const link = document.getElementById("link");
const together = document.getElementById("together");
const holder = document.getElementById("runs");
const digests = new Map(); // of the parts that are shown
const opened = new Set(), shut = new Set(); // runs, by what was clicked
let chosen = "", server = null, timer = null, isAsking = false;

/** Show a part in its place, if it is another one. */
function place(node, key, part) {
  if (part.tree) show(node, part.tree);
  digests.set(key, part.digest);
}

function article(id, index) {
  const there = holder.children[index];
  if (there?.dataset.run === String(id)) return there;
  const node = holder.querySelector(`:scope > [data-run="${id}"]`) ?? document.createElement("article");
  node.className = "run";
  node.dataset.run = id;
  holder.insertBefore(node, there ?? null);
  return node;
}

function showRun(run, index) {
  const node = article(run.id, index);
  node.classList.toggle("wide", run.is_wide);
  run.parts.forEach((part, at) => {
    if (at >= node.children.length) node.append(document.createElement("div"));
    place(node.children[at], `${run.id}.${part.name}`, part);
  });
  while (node.children.length > run.parts.length) node.lastChild.remove();
}

function forget(id) {
  for (const key of digests.keys()) if (key.startsWith(`${id}.`)) digests.delete(key);
}

function take(state) {
  if (server !== null && server !== state.server) {
    // Another server has other runs: forget those of this one.
    for (const known of [digests, opened, shut]) known.clear();
    for (const node of [holder, together]) node.replaceChildren();
    server = null;
    return;
  }
  server = state.server;
  document.title = state.title;
  together.hidden = state.together === null;
  if (state.together) place(together, "together", state.together);
  const shown = new Set(state.runs.map((run) => String(run.id)));
  for (const node of [...holder.children]) {
    if (shown.has(node.dataset.run)) continue;
    forget(node.dataset.run);
    node.remove();
  }
  state.runs.forEach(showRun);
}

function query() {
  const fields = { open: [...opened], shut: [...shut], figure: chosen, have: [...new Set(digests.values())] };
  const given = Object.entries(fields).filter(([, value]) => value.length);
  return given.length ? `?${given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}` : "";
}

async function ask() {
  clearTimeout(timer);
  isAsking = true;
  let isReading = false;
  try {
    const answer = await fetch(`state${query()}`, { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(30000) });
    if (!answer.ok) throw new Error(await answer.text());
    const state = await answer.json();
    take(state);
    isReading = state.is_reading;
    link.className = "link live";
    link.textContent = "live";
  } catch (error) {
    if (!link.classList.contains("lost")) {
      link.textContent = `no answer since ${new Date().toLocaleTimeString()}: tdcd watch has ended; this is its last state`;
    }
    link.className = "link lost";
    console.warn(error);
  }
  isAsking = false;
  timer = setTimeout(ask, isReading ? SOON_MS : EVERY_MS);
}

/** Request what was just chosen; while an answer is on its way, the next one brings it. */
function askNow() {
  if (!isAsking) ask();
}

together.addEventListener("click", (event) => {
  const button = event.target.closest("[data-toggle]");
  if (!button) return;
  const id = Number(button.dataset.toggle), isOpen = button.getAttribute("aria-expanded") === "true";
  (isOpen ? opened : shut).delete(id);
  (isOpen ? shut : opened).add(id);
  askNow();
});
together.addEventListener("change", (event) => {
  chosen = event.target.value;
  askNow();
});

ask();
