// Time and bytes as bars.

import { html } from "./dom.js";
import { bytes, duration } from "./units.js";

const LINKS = [["client_to_hub", "clients to hubs"], ["hub_to_client", "hubs to clients"], ["hub_to_hub", "hub to hub"]];

/** A bar of parts: [class, fraction] each. */
function bar(...parts) {
  const track = html("div", { class: "track" });
  for (const [name, fraction] of parts) {
    const part = html("span", { class: name });
    part.style.width = `${(100 * fraction).toFixed(2)}%`;
    track.append(part);
  }
  return track;
}

/** How long each hub's silo worked and waited. */
export function timeBars(time) {
  return time.map((hub) => {
    const all = hub.worked + hub.waited_in_all || 1;
    const percent = Math.round((100 * hub.worked) / all);
    const longest = hub.waited.slice(0, 3).filter(([, seconds]) => seconds > 0).map(([party, seconds]) => `${party} ${duration(seconds)}`);
    const waited = longest.length ? `, for ${longest.join(", ")}${hub.waited.length > 3 ? ", …" : ""}` : "";
    return html("div", { class: "bar" },
      html("dt", {}, hub.party),
      html("dd", {}, bar(["work", hub.worked / all], ["wait", hub.waited_in_all / all]),
        html("small", {}, `worked ${percent} % (${duration(hub.worked)}), waited ${100 - percent} %${waited}`)));
  });
}

/** Bytes since the start by kind of link; those of evaluations, where they were counted, in one bar of their own. */
export function byteBars(sent, rounds, evaluated) {
  const sum = (counts) => LINKS.reduce((before, [link]) => before + counts[link], 0);
  const total = sum(sent) || 1;
  const evaluation = evaluated ? [html("div", { class: "bar" },
    html("dt", {}, "evaluations"), html("dd", {}, html("small", {}, `${bytes(sum(evaluated))} besides`)))] : [];
  return LINKS.map(([link, title]) => html("div", { class: "bar" },
    html("dt", {}, title),
    html("dd", {}, bar(["work", sent[link] / total]),
      html("small", {}, `${bytes(sent[link])} (${Math.round((100 * sent[link]) / total)} %)${rounds ? `, ${bytes(sent[link] / rounds)} per round` : ""}`)))).concat(evaluation);
}
