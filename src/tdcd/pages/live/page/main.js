// Asks for news once in a second, and shows all runs: side by side where there are several.

import { say } from "./dom.js";
import { Run } from "./run.js";
import { Together } from "./together.js";
import { counted } from "./units.js";

const EVERY_MS = 1000;
const SOON_MS = 50; // while the server has not read all yet
const FEW = 3; // runs that are all open at the start

const link = document.getElementById("link");
const holder = document.getElementById("runs");
const runs = new Map();
const together = new Together(document.getElementById("together"), (id) => toggle(id));
const open = new Map();
let server = null;

const isOpen = (id) => open.get(id) ?? (runs.size <= FEW || id === first());

/** The run to look at if there are many: the first that runs, or the first of all. */
function first() {
  const ids = [...runs.keys()];
  return ids.find((id) => ["running", "waiting"].includes(runs.get(id).run.state)) ?? ids[0];
}

function toggle(id) {
  open.set(id, !isOpen(id));
  show();
}

function have() {
  const known = [...runs.values()].filter((run) => run.points.rows.length);
  return known.length ? `?have=${known.map((run) => `${run.id}.${run.points.version}.${run.points.rows.length}`).join(",")}` : "";
}

function take(state) {
  if (server !== null && server !== state.server) {
    // Another server has other runs: forget what this one said.
    server = null;
    runs.clear();
    open.clear();
    return;
  }
  server = state.server;
  const ids = new Set(state.runs.map((run) => run.id));
  for (const id of runs.keys()) if (!ids.has(id)) runs.delete(id);
  for (const run of state.runs) {
    if (!runs.has(run.id)) runs.set(run.id, new Run(run.id));
    runs.get(run.id).update(run);
  }
  together.update([...runs.values()], state.hidden, isOpen);
  show();
}

function show() {
  const shown = [...runs.values()].filter((run) => isOpen(run.id));
  const nodes = shown.map((run) => run.node);
  if (nodes.length !== holder.children.length || nodes.some((node, place) => node !== holder.children[place])) holder.replaceChildren(...nodes);
  for (const run of shown) run.draw();
  together.mark(isOpen);
  const one = runs.size === 1 ? [...runs.values()][0].run : null;
  document.title = one ? `${one.round ?? 0}/${one.rounds ?? 0} · ${one.name} · tdcd watch` : `${counted(runs.size, "run")} · tdcd watch`;
}

async function ask() {
  try {
    const answer = await fetch(`state${have()}`, { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(30000) });
    if (!answer.ok) throw new Error(await answer.text());
    take(await answer.json());
    link.className = "link live";
    say(link, "live");
  } catch (error) {
    if (!link.classList.contains("lost")) {
      say(link, `no answer since ${new Date().toLocaleTimeString()}: tdcd watch has ended; this is what it said last`);
    }
    link.className = "link lost";
    console.warn(error);
    // What came last may not be drawn yet.
    show();
  }
  const isReading = [...runs.values()].some(({ run }) => run.state === "reading");
  setTimeout(ask, isReading && link.classList.contains("live") ? SOON_MS : EVERY_MS);
}

ask();
