// How figures, times and durations look.

import {now} from "./api.js";
import {inUTC} from "./remembered.js";

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1});

export const count = n => whole.format(n ?? 0);
// short is for the axes of charts and for narrow places.
export const short = n => (Math.abs(n) < 100_000 ? whole.format(n) : compact.format(n));
export const plural = (n, one, many = one + "s") => count(n) + " " + (n === 1 ? one : many);

const units = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000]];

// span shows a duration in its two greatest units: 3d 4h, 5m 10s, 12s. Less than a second is 0s.
export function span(ms) {
  let left = Math.max(0, Math.floor(ms));
  const parts = [];
  for (const [unit, length] of units) {
    const n = Math.floor(left / length);
    left -= n * length;
    if (n > 0) parts.push(n + unit);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join("\u00a0") || "0s"; // a line does not end within it
}

// millis reads a duration of the API, such as 1h30m or 8.48ms.
export function millis(text) {
  const sizes = {d: 86_400_000, h: 3_600_000, m: 60_000, s: 1000, ms: 1, "µs": 1e-3, us: 1e-3, ns: 1e-6};
  let sum = 0;
  for (const [, n, unit] of String(text ?? "").matchAll(/([\d.]+)(ms|µs|us|ns|d|h|m|s)/g)) sum += n * sizes[unit];
  return sum;
}

// fine shows a short duration of the API with three digits: 8.48 ms, 1.2 s, 4m 12s.
export function fine(text) {
  const ms = typeof text === "number" ? text : millis(text);
  if (ms === 0) return "0";
  if (ms < 1) return Math.round(ms * 1000) + "\u00a0µs";
  if (ms < 1000) return Number(ms.toPrecision(3)) + "\u00a0ms";
  if (ms < 60_000) return Number((ms / 1000).toPrecision(3)) + "\u00a0s";
  return span(ms);
}

// lateness shows how late first attempts began: their p99, and the latest of them.
const lateness = l => ({value: l.count ? fine(l.p99) : "–",
  note: !l.count ? "no task was due" : millis(l.max) ? "p99; the latest by " + fine(l.max) : "p99; none was late"});

// lacksRecent says what figures of the last 5 minutes lack, "" if nothing.
export const lacksRecent = answer => (answer?.recent_without ? "without what " + answer.recent_without.join(", ") + " had counted until " + when(answer.recent_since) : "");

// lateFigure is how late the tasks of an answer were in the last 5 minutes.
export const lateFigure = (recent, answer) => {
  const f = lateness(recent);
  return {name: "late", label: "Late by, last 5 min", ...f, note: [f.note, lacksRecent(answer)].filter(Boolean).join("; ")};
};

export const age = instant => now() - Date.parse(instant);

// clocks has the formats of each clock that times can be told by: of the reader's zone, and UTC.
const clocks = [undefined, "UTC"].map(timeZone => {
  const format = options => new Intl.DateTimeFormat("en-GB", {timeZone, ...options});
  return {
    clock: format({hour: "2-digit", minute: "2-digit", second: "2-digit"}), minute: format({hour: "2-digit", minute: "2-digit"}),
    day: format({day: "numeric", month: "short"}), year: format({day: "numeric", month: "short", year: "numeric"}), zone: format({timeZoneName: "short"}),
  };
});
const told = () => clocks[inUTC() ? 1 : 0];

// zone is the short name of the zone that times are told by: CET, GMT+2, UTC.
export const zone = () => told().zone.formatToParts(now()).find(p => p.type === "timeZoneName").value;

export const hourMinute = at => told().minute.format(at);

// when shows an instant by the chosen clock, with the day if that is another one.
export function when(instant) {
  const {clock, day, year} = told(), at = new Date(instant), date = year.format(at), today = year.format(now());
  if (date === today) return clock.format(at);
  return (date.slice(-4) === today.slice(-4) ? day : year).format(at) + ", " + clock.format(at);
}

// ago shows for how long (ms) something is over.
export const ago = ms => (ms < 1000 ? "just now" : span(ms) + " ago");

// away shows how far an instant is: in 4m 10s, 12s ago. The clocks of two machines differ by some
// milliseconds: what is less than a second ahead is now.
export function away(instant) {
  const ms = age(instant);
  return ms <= -1000 ? "in " + span(-ms) : ago(ms);
}

// localInput is an instant as the value of an input of the type datetime-local, by the chosen clock,
// and fromInput the other way round. byClock says for its label which clock that is.
export function localInput(at) {
  const d = new Date(at);
  return new Date(d.getTime() - (inUTC() ? 0 : d.getTimezoneOffset() * 60_000)).toISOString().slice(0, 19);
}
export const fromInput = text => (text ? new Date(inUTC() ? text + "Z" : text).toISOString() : "");
export const byClock = () => (inUTC() ? "in UTC" : "by your clock (" + zone() + ")");
