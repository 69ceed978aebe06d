// The last hour, by the minute: how much was delivered and failed, and how late it was.

import {html, useRef} from "../vendor/preact.js";
import {get, now} from "../api.js";
import {Chart} from "../chart.js";
import {count, fine, hourMinute, millis, plural, when} from "../format.js";
import {Section} from "../parts.js";
import {usePoll} from "../poll.js";

const minute = 60_000;

// useHistory asks for the whole hour once, and then for the minutes since the last answer only, of
// which the first may have grown.
function useHistory() {
  const known = useRef({minutes: new Map(), at: 0});
  return usePoll(async signal => {
    const k = known.current, ago = Math.ceil((now() - k.at) / minute) + 1;
    const h = await get("v1/history", {minutes: Math.min(60, ago)}, signal);
    for (const p of h.points) k.minutes.set(p.at, p);
    k.at = now();
    const points = [...k.minutes.values()].sort((a, b) => Date.parse(a.at) - Date.parse(b.at)).filter(p => k.at - Date.parse(p.at) <= 61 * minute);
    k.minutes = new Map(points.map(p => [p.at, p]));
    return {...h, points};
  }, [], 10_000);
}

const inWords = late => (late.count ? "half within " + fine(late.p50) + ", 99 of 100 within " + fine(late.p99) + ", all within " + fine(late.max) : "no task was due");

export function LastHour() {
  const poll = useHistory(), points = poll.data?.points;
  if (!points?.length) {
    const why = poll.fault ? poll.fault.message : points ? "Nothing was counted yet." : "Loading…";
    return ["Attempts, last hour", "Lateness, last hour"].map(title => html`<${Section} key=${title} title=${title}><p class="empty room">${why}</p></${Section}>`);
  }
  const x = points.map(p => Date.parse(p.at) / 1000), to = x[x.length - 1] + 60, axis = {from: to - 3660, to}, at = i => hourMinute(x[i] * 1000) + ": ";
  const sum = key => points.reduce((n, p) => n + p[key], 0), failed = sum("failed");
  const worst = points.reduce((a, p) => (millis(p.lateness.max) > millis(a.lateness.max) ? p : a));
  const since = Date.parse(poll.data.since) > now() - 55 * minute ? " since " + when(poll.data.since) : "";
  return html`<${Section} title="Attempts, last hour" poll=${poll}>
      <${Chart} ...${axis} x=${x}
        series=${[{label: "all", values: points.map(p => p.delivered + p.failed), colour: "--accent", bars: true}, // what failed is drawn over its foot
          {label: "failed", values: points.map(p => p.failed || null), colour: "--bad", bars: true}]}
        about=${count(sum("delivered")) + " delivered" + (failed ? ", " + plural(failed, "attempt") + " failed" : "") + since + "."}
        say=${i => at(i) + count(points[i].delivered) + " delivered, " + count(points[i].failed) + " failed, " + count(points[i].scheduled) + " scheduled"} />
    </${Section}>
    <${Section} title="Lateness, last hour" poll=${poll}>
      <${Chart} ...${axis} x=${x} format=${fine} series=${[{label: "p99", values: points.map(p => (p.lateness.count ? millis(p.lateness.p99) : null)), colour: "--accent"}]}
        about=${worst.lateness.count ? "99 of 100 at most; the latest was " + fine(worst.lateness.max) + ", at " + hourMinute(Date.parse(worst.at)) + "." : "No task was due."}
        say=${i => at(i) + inWords(points[i].lateness)} />
    </${Section}>`;
}
