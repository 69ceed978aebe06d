// What is wrong with a topic: the page shows the same judgement everywhere, the worst first.

import {age, away, count, plural, span, when} from "./format.js";

// A task that is ready is handed out within milliseconds. lateAfter is the age from which it counts
// as late, in ms. The server sorts by the same.
const lateAfter = 1000;

export const isLate = c => !!c.ready_oldest_at && age(c.ready_oldest_at) >= lateAfter;
export const isFailing = t => t.counts.failed_recent > 0;

// faults lists what is wrong, the worst first: {kind, text, detail, bad, long}. long: the detail is a
// text of any length. A topic that is paused is
// not late: it waits because it was told to.
export function faults(t) {
  const c = t.counts, list = [];
  if (t.undeliverable) list.push({kind: "undeliverable", bad: true, text: "cannot be delivered", detail: t.undeliverable, long: true});
  if (!t.paused && isLate(c))
    list.push({kind: "late", bad: true, text: span(age(c.ready_oldest_at)) + " late",
      detail: plural(c.ready, "task") + " ready, the oldest due since " + when(c.ready_oldest_at) + whyNotPulled(t)});
  if (isFailing(t)) list.push({kind: "failing", bad: true, text: count(c.failed_recent) + " failed", detail: t.last_error || "an attempt failed " + away(t.last_failed_at), long: true});
  if (c.dead > 0) list.push({kind: "dead", bad: true, text: count(c.dead) + " dead", detail: ""});
  if (t.paused) list.push({kind: "paused", bad: false, text: "paused", detail: c.ready > 0 ? plural(c.ready, "task") + " held back since " + when(c.ready_oldest_at) : ""});
  return list;
}

const whyNotPulled = t => (t.delivery.kind === "pull" && t.counts.receivers === 0 && t.counts.delivering === 0 ? "; no receiver pulls" : "");

// verdict sums the worst topics up in one sentence for the head of the overview. With more there may
// be others after them.
export function verdict(topics, more) {
  const has = kind => topics.filter(t => faults(t).some(f => f.kind === kind));
  const late = has("late"), failing = has("failing"), stuck = has("undeliverable"), parts = [];
  if (stuck.length) parts.push(named(stuck, "cannot be delivered", "cannot be delivered"));
  if (late.length) parts.push(named(late, "is late", "are late"));
  if (failing.length) parts.push(named(failing, "is failing", "are failing"));
  if (!parts.length) return {bad: false, text: "Nothing is late."};
  const all = more && topics.every(t => faults(t).some(f => f.kind !== "paused" && f.kind !== "dead"));
  return {bad: true, text: (all ? "At least " : "") + parts.join(", ") + "."};
}

const named = (topics, one, many) => (topics.length === 1 ? topics[0].name + " " + one : count(topics.length) + " topics " + many);
