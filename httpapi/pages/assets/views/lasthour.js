// The last hour, by the minute: how much was delivered and failed, and how late it was.

import {html, useRef} from "../vendor/preact.js";
import {get, now} from "../api.js";
import {Chart} from "../chart.js";
import {count, fine, hourMinute, millis, plural, when} from "../format.js";
import {Section} from "../parts.js";
import {usePoll} from "../poll.js";
import {go, waveOf} from "../route.js";

const minute = 60_000, marksShown = 5;

// useHistory asks for the whole hour once, and then for the minutes since the last answer only, of
// which the first may have grown.
function useHistory(topic) {
  const known = useRef({minutes: new Map(), marks: new Map(), at: 0});
  return usePoll(async signal => {
    const k = known.current, ago = Math.ceil((now() - k.at) / minute) + 1;
    const h = await get("v1/history", {minutes: Math.min(60, ago), topic}, signal);
    if (topic && h.topic !== topic) return {...h, points: []}; // a server that keeps no past of topics
    for (const m of h.marks ?? []) k.marks.set([m.at, m.kind, m.node, m.topic].join(), m);
    for (const p of h.points) k.minutes.set(p.at, p);
    k.at = now();
    const points = [...k.minutes.values()].sort((a, b) => Date.parse(a.at) - Date.parse(b.at)).filter(p => k.at - Date.parse(p.at) <= 61 * minute);
    k.minutes = new Map(points.map(p => [p.at, p]));
    k.marks = new Map([...k.marks].filter(([, m]) => k.at - Date.parse(m.at) <= 61 * minute).slice(-mostMarks));
    return {...h, points, marks: [...k.marks.values()]};
  }, [topic], 10_000);
}

const inWords = late => (late.count ? "half within " + fine(late.p50) + ", 99 of 100 within " + fine(late.p99) + ", all within " + fine(late.max) : "no task was due");

// mostMarks bounds how many marks are kept.
const mostMarks = 100;

const kinds = {node_started: "started", node_stopped: "stopped", node_down: "was not heard any more", node_up: "was heard again", ledger_outage: "had no answer from the ledger", paused: "was paused", resumed: "was resumed", settings: "got other settings"};

// inWord says a mark: "02:10 order.unpaid got other settings (lease), by ann".
const markInWords = m => hourMinute(Date.parse(m.at)) + " " + [m.topic || m.node, kinds[m.kind] ?? m.kind].filter(Boolean).join(" ") + (m.text ? " (" + m.text + ")" : "") + (m.by ? ", by " + m.by : "") + (m.until ? ", until " + hourMinute(Date.parse(m.until)) : "");

// waited is for how long the oldest task that waits now had waited at the end of a minute, in ms; null
// before it was due.
const waited = (oldest, at) => {
  const ms = Math.min(now(), at + minute) - Date.parse(oldest);
  return ms > 0 ? ms : null;
};

// LastHour is of one topic, or of all. oldest is the deadline of the oldest task that waits, "" if none does.
export function LastHour({topic, oldest}) {
  const poll = useHistory(topic), points = poll.data?.points;
  if (!points?.length) {
    const why = poll.fault ? poll.fault.message : points ? "Nothing was counted yet." : "Loading…";
    return ["Attempts, last hour", "Lateness, last hour"].map(title => html`<${Section} key=${title} title=${title}><p class="empty room">${why}</p></${Section}>`);
  }
  const x = points.map(p => Date.parse(p.at) / 1000), to = x[x.length - 1] + 60, axis = {from: to - 3660, to}, at = i => hourMinute(x[i] * 1000) + ": ";
  const sum = key => points.reduce((n, p) => n + p[key], 0), failed = sum("failed");
  const worst = points.reduce((a, p) => (millis(p.lateness.max) > millis(a.lateness.max) ? p : a));
  const marks = poll.data.marks.map(m => ({at: Date.parse(m.at) / 1000, text: markInWords(m)})), told = [...new Set(marks.map(m => m.text))].slice(-marksShown);
  const nodes = Math.max(...points.map(p => p.nodes ?? 0)), less = i => (points[i].nodes < nodes ? ", of " + plural(points[i].nodes, "node") : "");
  const open = i => go(waveOf(x[i] * 1000, minute, topic)), waits = i => (oldest && waited(oldest, x[i] * 1000) ? "; the oldest that waits was late by " + fine(waited(oldest, x[i] * 1000)) : "");
  const since = Date.parse(poll.data.since) > now() - 55 * minute ? " since " + when(poll.data.since) : "";
  return html`<${Section} title="Attempts, last hour" poll=${poll}>
      <${Chart} ...${axis} x=${x}
        series=${[{label: "all", values: points.map(p => p.delivered + p.failed), colour: "--accent", bars: true}, // what failed is drawn over its foot
          {label: "failed", values: points.map(p => p.failed || null), colour: "--bad", bars: true}]}
        about=${count(sum("delivered")) + " delivered" + (failed ? ", " + plural(failed, "attempt") + " failed" : "") + since + "."}
        say=${i => at(i) + count(points[i].delivered) + " delivered, " + count(points[i].failed) + " failed, " + count(points[i].scheduled) + " scheduled" + less(i)}
        pick=${open} marks=${marks} />
      ${told.length ? html`<ul class="marks" aria-label="What happened besides">${told.map(text => html`<li key=${text}>${text}</li>`)}</ul>` : null}
    </${Section}>
    <${Section} title="Lateness, last hour" poll=${poll}>
      <${Chart} ...${axis} x=${x} format=${fine} series=${[{label: "p99", values: points.map(p => (p.lateness.count ? millis(p.lateness.p99) : null)), colour: "--accent"},
          {label: "oldest", values: points.map((_, i) => (oldest ? waited(oldest, x[i] * 1000) : null)), colour: "--bad"}]}
        about=${oldest && waited(oldest, now()) ? "The oldest that waits is late by " + fine(now() - Date.parse(oldest)) + "." : worst.lateness.count ? "99 of 100 at most; the latest was " + fine(worst.lateness.max) + ", at " + hourMinute(Date.parse(worst.at)) + "." : "No task was due."}
        say=${i => at(i) + inWords(points[i].lateness) + waits(i)} pick=${open} marks=${marks} />
    </${Section}>`;
}
