// The last hour, by the minute: how much was delivered and failed, and how late it was.

import {html, useRef} from "../vendor/preact.js";
import {get, now} from "../api.js";
import {Chart} from "../chart.js";
import {count, fine, hourMinute, millis, plural, when} from "../format.js";
import {Section} from "../parts.js";
import {usePoll} from "../poll.js";
import {go, waveOf} from "../route.js";
import {downNodes} from "../trouble.js";

const minute = 60_000, marksShown = 5;

// useHistory asks for the whole hour each time: the answer before may have been of other nodes. It has 12 kB.
const useHistory = topic => usePoll(signal => get("v1/history", {topic}, signal), [topic], 15_000);

const inWords = late => (late.count ? "half within " + fine(late.p50) + ", 99 of 100 within " + fine(late.p99) + ", all within " + fine(late.max) : "no task was due");

const kinds = {node_started: "started", node_stopped: "stopped", node_down: "was not heard any more", node_up: "was heard again", ledger_outage: "had no answer from the ledger", paused: "was paused", resumed: "was resumed", settings: "got other settings"};

// markInWords says a mark: "02:10 order.unpaid got other settings (lease), by ann".
const markInWords = m => hourMinute(Date.parse(m.at)) + " " + [m.topic || m.node, kinds[m.kind] ?? m.kind].filter(Boolean).join(" ") + (m.text ? " (" + m.text.replace(/^\((.*)\)$/, "$1") + ")" : "") + (m.by ? ", by " + m.by : "") + (m.until ? ", until " + hourMinute(Date.parse(m.until)) : "");

// latest are the last marks. What several nodes have noticed within a minute is one.
function latest(marks) {
  const all = [];
  for (const m of marks) {
    const was = all.at(-1);
    if (was && !m.topic && m.kind === was.kind && m.text === was.text && Date.parse(m.at) - Date.parse(was.at) < minute)
      Object.assign(was, {until: m.until, node: was.node + ", " + m.node});
    else all.push({...m});
  }
  return [...new Set(all.map(markInWords))].slice(-marksShown);
}

// waited is for how long the oldest task had waited at the end of a minute, in ms; null before it was due.
const waited = (oldest, at) => {
  const ms = Math.min(now(), at + minute) - Date.parse(oldest);
  return ms > 0 ? ms : null;
};

// ofNodes says of how many nodes a point is, if another one is of more.
const ofNodes = (p, most) => (p.nodes === 0 ? "nothing is known" : p.nodes < most ? "of " + p.nodes + " of " + plural(most, "node") : "");

// LastHour is of one topic, or of all. oldest is the deadline of the oldest task that waits, "" if none does.
// diagnosis names the nodes that are down: what they counted last may not be kept.
export function LastHour({topic, oldest, diagnosis}) {
  const poll = useHistory(topic), points = poll.data?.points, nodes = useRef(0); // as many as there ever were
  if (!points?.length) {
    const why = poll.fault ? poll.fault.message : poll.data?.unread || (points ? "Nothing is known of the last hour." : "Loading…");
    return ["Attempts, last hour", "Lateness, last hour"].map(title => html`<${Section} key=${title} title=${title}><p class="empty room">${why}</p></${Section}>`);
  }
  const x = points.map(p => Date.parse(p.at) / 1000), to = x[x.length - 1] + 60, axis = {from: to - 3660, to, x, pick: i => go(waveOf(x[i] * 1000, minute, topic))};
  const sum = key => points.reduce((n, p) => n + p[key], 0), failed = sum("failed"), known = value => points.map(p => (p.nodes ? value(p) : null));
  const worst = points.reduce((a, p) => (millis(p.lateness.max) > millis(a.lateness.max) ? p : a));
  const marks = poll.data.marks.map(m => ({at: Date.parse(m.at) / 1000, text: markInWords(m)})), told = latest(poll.data.marks);
  const most = nodes.current = Math.max(nodes.current, ...points.map(p => p.nodes), new Set([...poll.data.covers, ...poll.data.missing.map(m => m.node).filter(Boolean), ...downNodes(diagnosis)]).size), fewer = points.some(p => p.nodes < most);
  const say = text => i => hourMinute(x[i] * 1000) + ": " + [points[i].nodes ? text(points[i], x[i] * 1000) : "", ofNodes(points[i], most)].filter(Boolean).join(", ");
  const waits = at => (oldest && waited(oldest, at) ? "; the oldest that waits was late by " + fine(waited(oldest, at)) : "");
  const since = Date.parse(poll.data.since) > now() - 55 * minute ? " since " + when(poll.data.since) : "";
  const notes = [poll.data.unread, fewer ? "Some minutes are of fewer than " + plural(most, "node") + "." : "", ...told].filter(Boolean);
  return html`<${Section} title="Attempts, last hour" poll=${poll}>
      <${Chart} ...${axis} marks=${marks}
        series=${[{label: "all", values: known(p => p.delivered + p.failed), colour: "--accent", bars: true}, // what failed is drawn over its foot
          {label: "failed", values: known(p => p.failed || null), colour: "--bad", bars: true}]}
        about=${count(sum("delivered")) + " delivered" + (failed ? ", " + plural(failed, "attempt") + " failed" : "") + since + "."}
        say=${say(p => count(p.delivered) + " delivered, " + count(p.failed) + " failed, " + count(p.scheduled) + " scheduled")} />
      ${notes.length ? html`<ul class="marks" aria-label="What happened besides">${notes.map(text => html`<li key=${text}>${text}</li>`)}</ul>` : null}
    </${Section}>
    <${Section} title="Lateness, last hour" poll=${poll}>
      <${Chart} ...${axis} marks=${marks} format=${fine} series=${[{label: "p99", values: known(p => (p.lateness.count ? millis(p.lateness.p99) : null)), colour: "--accent"},
          {label: "oldest", values: x.map(at => (oldest ? waited(oldest, at * 1000) : null)), colour: "--bad"}]}
        about=${oldest && waited(oldest, now()) ? "The oldest that waits is late by " + fine(now() - Date.parse(oldest)) + "." : worst.lateness.count ? "99 of 100 at most; the latest was " + fine(worst.lateness.max) + ", at " + hourMinute(Date.parse(worst.at)) + "." : "No task was due."}
        say=${say((p, at) => inWords(p.lateness) + waits(at))} />
    </${Section}>`;
}
