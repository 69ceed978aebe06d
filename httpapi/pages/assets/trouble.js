// What is wrong, as the server judges it: in its diagnosis, and with each topic.

import {html} from "./vendor/preact.js";
import {age, count, span, when} from "./format.js";
import {Pill} from "./parts.js";

// fleetTroubles are those of the ledger and the nodes.
export const fleetTroubles = diagnosis => (diagnosis?.troubles || []).filter(t => !t.topic);
export const downNodes = diagnosis => fleetTroubles(diagnosis).filter(t => t.kind === "silent" || t.kind === "adopted").map(t => t.node);

export const has = (topic, kind) => !!topic.troubles?.some(t => t.kind === kind);

// pills are the words for a trouble of a topic where there is little room.
const pills = {
  undeliverable: () => "cannot be delivered", late: t => span(age(t.since)) + " late", failing: (_, c) => count(c.failed_recent) + " failed",
  dead: (_, c) => count(c.dead) + " dead", paused: () => "paused",
};

// details say more of it. Texts of any length are cut where there is no room.
const details = {
  undeliverable: t => t.detail, late: t => t.detail + ", the oldest due since " + when(t.since), failing: (t, topic) => topic.last_error || t.detail,
  dead: () => "", paused: t => (t.detail ? t.detail + " since " + when(t.since) : ""),
};

// Troubles shows what is wrong with a topic.
export const Troubles = ({topic}) => html`<div class="faults">${(topic.troubles || []).map(t => {
  const detail = (details[t.kind] ?? (x => x.detail))(t, topic), long = t.kind === "undeliverable" || t.kind === "failing";
  return html`<div key=${t.kind}><span><${Pill} bad=${t.kind !== "paused"} warn=${t.kind === "paused"}>${pills[t.kind]?.(t, topic.counts) ?? t.kind}</${Pill}></span>
    ${detail ? html`<span class=${long ? "clamp" : ""} title=${long ? detail : undefined}>${detail}</span>` : null}</div>`;
})}</div>`;

// remedies say what to do about a trouble, where a reader may not know.
const remedies = {
  ledger: "Start it, or mend the network to it: the nodes go on by themselves.",
  refusing: "Give it room: tasks that are there are delivered all the same.",
  cut_off: "Look at its network and its log.", unknown: "", unheard: "Look at its log and its processor.",
  silent: "Start it again: it takes its tasks back.", adopted: "Start it again when you can: it takes its tasks back. Figures of the last 5 minutes and since the start are without what it has counted.",
  undeliverable: "Mend the topic's settings.", late: "", ahead: "Add receivers before it comes, or give the topic a spread.", failing: "See the last errors: mend the receiver, or pause the topic until it is mended.",
};

export const remedy = t => (t.kind === "late" && t.detail?.includes("no receiver pulls") ? "Start a receiver that pulls from it." : t.kind === "late" ? "Raise its concurrency, or add receivers." : remedies[t.kind] ?? "");

// sentence says a trouble with its beginning: "n3 is down, and others have its tasks, since 12:02:48."
export const sentence = t => (t.text.startsWith(t.topic || t.node || "\n") ? t.text : t.text[0].toUpperCase() + t.text.slice(1))
  + (t.since ? ", since " + when(t.since) : "") + (t.detail ? ": " + t.detail : "") + ".";
