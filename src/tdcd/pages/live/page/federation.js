// The federation: silos as boxes, each a hub with its clients, and the rail over which the hubs exchange phi.

import { html, svg } from "./dom.js";
import { count, counted, duration } from "./units.js";

const SIGNS = { "waited for": "…", "left out": "×", revoked: "!", away: "–", unknown: "?", ended: "✓" };
const WORDS = {
  simulated: "in this simulation", connected: "connected", "waited for": "waited for", "left out": "left out",
  revoked: "certificate revoked", away: "not connected", ended: "done", unknown: "not known here",
};
const ALARMS = ["waited for", "left out", "revoked", "away"];
const WIDTH = 280, CELL = 46, LINE = 54, PER_LINE = 6, HUB_Y = 30, CLIENTS_Y = 88;

const trimmed = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
const className = (state) => state.replace(" ", "-");
const since = (party) => (party.seconds ? `, ${duration(party.seconds)}` : "");

function drawClient(client, x, y, mostRows) {
  const radius = client.rows && mostRows ? Math.max(6, 16 * Math.sqrt(client.rows / mostRows)) : 12;
  const rows = client.rows === null ? "" : `, ${counted(client.rows, "row")}`;
  return svg("g", { class: `client ${className(client.state)}` },
    svg("title", {}, `${client.name}: ${WORDS[client.state]}${since(client)}${rows}`),
    svg("circle", { cx: x, cy: y, r: radius.toFixed(1) }),
    svg("text", { class: "sign", x, y: y + 4 }, SIGNS[client.state] ?? ""),
    svg("text", { x, y: y + 28 }, trimmed(client.name, 7)));
}

function drawSilo(silo, mostRows, hasRail) {
  const lines = Math.max(1, Math.ceil(silo.clients.length / PER_LINE));
  const perLine = Math.ceil(silo.clients.length / lines);
  const hidden = silo.num_clients - silo.clients.length;
  const bottom = CLIENTS_Y + lines * LINE + (hidden ? 16 : 0);
  const middle = WIDTH / 2;
  let links = "";
  const clients = silo.clients.map((client, index) => {
    const line = Math.floor(index / perLine);
    const inLine = Math.min(perLine, silo.clients.length - line * perLine);
    const x = middle + ((index % perLine) - (inLine - 1) / 2) * CELL;
    const y = CLIENTS_Y + line * LINE;
    links += `M${middle} ${HUB_Y}L${x} ${y}`;
    return drawClient(client, x, y, mostRows);
  });
  const columns = silo.features.length > 1 ? `${silo.features.join(" × ")} pixels` : silo.features.length ? counted(silo.features[0], "column") : "";
  const words = [columns, counted(silo.num_clients, "client")].filter(Boolean).join(", ");
  return svg("svg", { class: "silo", viewBox: `0 0 ${WIDTH} ${bottom + 40}`, role: "img", "aria-label": `${silo.name}: ${words}` },
    svg("title", {}, `${silo.name}: ${words}`),
    hasRail ? svg("path", { class: "rail", d: `M${middle} 0V${HUB_Y}` }) : null,
    svg("rect", { class: "box", x: 4, y: HUB_Y, width: WIDTH - 8, height: bottom + 38 - HUB_Y, rx: 10 }),
    svg("path", { class: "links", d: links }),
    ...clients,
    svg("g", { class: `hub ${className(silo.hub.state)}` },
      svg("title", {}, `hub of ${silo.name}: ${WORDS[silo.hub.state]}${since(silo.hub)}`),
      svg("rect", { x: middle - 24, y: HUB_Y - 14, width: 48, height: 28, rx: 7 }),
      svg("text", { x: middle, y: HUB_Y + 4 }, "hub")),
    hidden ? svg("text", { class: "more", x: middle, y: bottom - 2 }, `… ${count(hidden)} more`) : null,
    svg("text", { class: "name", x: middle, y: bottom + 12 }, trimmed(silo.name, 30)),
    svg("text", { x: middle, y: bottom + 28 }, words));
}

/** How many parties are in each state, and those by name that somebody should look after. */
function summary(silos) {
  const parties = silos.flatMap((silo) => [
    { ...silo.hub, words: `hub of ${silo.name}` },
    ...silo.clients.map((client) => ({ ...client, words: `${client.name} of ${silo.name}` })),
  ]);
  const states = Object.keys(WORDS).filter((state) => parties.some((party) => party.state === state));
  const totals = states.filter((state) => state !== "simulated").map((state) =>
    html("span", { class: `pill ${className(state)}` }, `${SIGNS[state] ?? "●"} ${parties.filter((party) => party.state === state).length} ${WORDS[state]}`));
  const named = parties.filter((party) => ALARMS.includes(party.state)).slice(0, 12).map((party) =>
    html("li", { class: className(party.state) }, `${party.words}: ${WORDS[party.state]}${since(party)}`));
  return [totals.length ? html("p", { class: "pills" }, ...totals) : null, named.length ? html("ul", { class: "missing" }, ...named) : null];
}

export function federation(run) {
  const mostRows = Math.max(...run.silos.flatMap((silo) => silo.clients.map((client) => client.rows ?? 0)), 0);
  const hasRail = run.num_silos > 1;
  const boxes = run.silos.map((silo) => html("div", {}, drawSilo(silo, mostRows, hasRail)));
  const hidden = run.num_silos - run.silos.length;
  return [
    html("div", { class: hasRail ? "silos railed" : "silos" }, ...boxes),
    hidden > 0 ? html("p", { class: "soft" }, `… ${counted(hidden, "more silo")}`) : null,
    ...summary(run.silos),
  ].filter((part) => part !== null);
}
