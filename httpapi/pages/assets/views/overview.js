// The overview answers the first questions of the night: what is wrong, since when, what comes next,
// and whether this is the whole fleet.

import {html, useRef, useState} from "../vendor/preact.js";
import {get} from "../api.js";
import {Chart} from "../chart.js";
import {age, away, count, hourMinute, lateFigure, plural, span, when} from "../format.js";
import {Figures, Section, Table, View, partly, settled} from "../parts.js";
import {isStale, usePoll} from "../poll.js";
import {go, link, waveOf} from "../route.js";
import {Troubles} from "../trouble.js";
import {FirstSteps} from "./create.js";
import {LastHour} from "./lasthour.js";
import {nodeColumns} from "./nodes.js";

// How many topics the overview shows. The others are in the list of topics.
const shown = 7;

// headlineFor is for how long the overview waits for its headline, in ms.
const headlineFor = 1500;

const deadLink = t => (t.counts.dead ? html`<a href=${link("dead", "", {topic: t.name})}>${count(t.counts.dead)}</a>` : html`<span class="zero">0</span>`);
export const quiet = n => (n ? count(n) : html`<span class="zero">0</span>`);

const worstColumns = [
  {head: "Topic", cell: t => html`<a href=${link("topics", t.name)}>${t.name}</a>`},
  {head: "What is wrong", class: "grow", cell: t => html`<${Troubles} topic=${t} />`},
  {head: "Ready", num: true, cell: t => quiet(t.counts.ready), note: "Due, and not handed out yet"},
  {head: "Delivering", num: true, cell: t => quiet(t.counts.delivering)},
  {head: "Dead", num: true, cell: deadLink},
];

// oldestOf is the earliest deadline of what is overdue, "" if nothing is.
export const oldestOf = c => c.overdue.oldest_at ?? "";

// overdue is the figure of what is past its deadline and not delivered, retries included.
export const overdue = (c, bad) => ({name: "overdue", label: "Overdue", value: count(c.overdue.count), bad: bad && c.overdue.count > c.overdue.paused,
  note: [c.overdue.oldest_at ? "oldest " + span(age(c.overdue.oldest_at)) : "", c.overdue.retrying ? count(c.overdue.retrying) + " retrying" : "", c.overdue.paused ? count(c.overdue.paused) + " paused" : ""].filter(Boolean).join(", ") || "none is"});

// totals are the figures of all topics together.
function totals(stats, soon, late) {
  const total = stats.total;
  const oldest = total.ready_oldest_at;
  return [
    overdue(total, true),
    {name: "ready", label: "Ready", value: count(total.ready), href: link("tasks", "", {state: "ready"}), bad: late,
      note: oldest ? "the oldest since " + when(oldest) : "all that was due is handed out"},
    lateFigure(total.recent, stats),
    {name: "delivering", label: "Being delivered", value: count(total.delivering), href: link("tasks", "", {state: "delivering"})},
    {name: "soon", label: "Due in 10 min", value: soon ?? "–", href: link("tasks", "", {due: "next10m"})},
    {name: "pending", label: "Pending", value: count(total.pending), href: link("tasks", "", {state: "pending"}),
      note: (total.retrying ? count(total.retrying) + " retrying" : "none is retrying") + (total.held ? ", " + count(total.held) + " held" : "")},
    {name: "dead", label: "Dead", value: count(total.dead), href: link("dead"), bad: total.dead > 0, note: total.dead_oldest_at ? "the oldest " + away(total.dead_oldest_at) : ""},
  ];
}

// judged says whether what falls due will be delivered in time: of the peak that waits longest, at
// its local time, if that is known; or in the words of the server.
function judged(j) {
  const waits = p => Date.parse(p.through_at) - Date.parse(p.at), worst = j.limit && [...j.peaks].sort((a, b) => waits(b) - waits(a))[0];
  return html`<p class=${"hint judgement" + (worst ? " warn" : "")} title=${j.text}>${worst ? hourMinute(Date.parse(worst.at)) + ": " + worst.text + "." : j.text}</p>`;
}

// Forecast draws how many tasks fall due when, of one topic or of all.
export function Forecast({topic, hour, title = "Falls due"}) {
  const [wide, setWide] = useState(false);
  const day = usePoll(signal => (wide ? get("v1/forecast", {window: "24h", step: "30m", topic}, signal) : Promise.resolve(null)), [wide, topic], 15_000);
  const poll = wide && day.data ? day : hour, f = poll.data;
  if (!f) return html`<${Section} title=${title}><p class="empty room">${poll.fault ? poll.fault.message : "Loading…"}</p></${Section}>`;
  const from = Date.parse(f.from) / 1000, step = wide && day.data ? 1800 : 60;
  const x = f.counts.map((_, i) => from + i * step), sum = f.counts.reduce((a, b) => a + b, 0);
  const peak = f.counts.indexOf(Math.max(...f.counts));
  const about = sum === 0 ? "Nothing falls due in the next " + (step === 60 ? "hour" : "day") + "."
    : plural(sum, "task") + ", most at " + hourMinute(x[peak] * 1000) + ": " + count(f.counts[peak]) + (f.later ? "; later " + count(f.later) : "") + ".";
  return html`<${Section} title=${title} poll=${poll} side=${html`<span class="choice">
      <button type="button" aria-pressed=${!wide} onClick=${() => setWide(false)}>Next hour</button>
      <button type="button" aria-pressed=${wide} onClick=${() => setWide(true)}>Next day</button></span>`}>
    <${Chart} key=${step} x=${x} to=${from + f.counts.length * step} series=${[{label: "due", values: f.counts, colour: "--accent", bars: true}]}
      about=${about + (f.complete ? "" : " Not all tasks are read yet.")}
      pick=${i => go(waveOf(x[i] * 1000, step * 1000, topic))}
      marks=${(f.judgement.limit ? f.judgement.peaks : []).map(p => ({at: Date.parse(p.at) / 1000, text: p.text}))}
      say=${i => hourMinute(x[i] * 1000) + " to " + hourMinute((x[i] + step) * 1000) + ": " + plural(f.counts[i], "task")} />
    ${judged(f.judgement)}
    ${sum ? html`<p class="hint"><a href=${waveOf(x[peak] * 1000, step * 1000, topic)}>The wave of ${hourMinute(x[peak] * 1000)}</a></p>` : null}
  </${Section}>`;
}

export const forecastOfHour = (topic, signal) => get("v1/forecast", {window: "1h", step: "1m", topic}, signal);

export function Overview({stats, diagnosis, may}) {
  const hour = usePoll(signal => forecastOfHour(undefined, signal), [], 10_000);
  const worst = usePoll(signal => get("v1/topics", {sort: "worst", limit: shown}, signal), [], 2000);
  const nodes = usePoll(signal => get("v1/nodes", undefined, signal), [], 5000);
  const s = stats.data, begun = useRef(Date.now());
  // The headline may have several lines: what stands below waits for it, but not for long.
  if (!s || !settled(diagnosis) && Date.now() - begun.current < headlineFor) return html`<${View} title="Overview" poll=${stats} />`;
  // A forecast that is old tells of other ten minutes.
  const soon = isStale(hour) || !hour.data ? undefined : (hour.data.complete ? "" : "at least ") + count(hour.data.counts.slice(0, 10).reduce((a, b) => a + b, 0));
  const wrong = worst.data?.topics.filter(t => t.troubles), more = wrong?.length === shown && worst.data.next_cursor;
  const late = !!diagnosis.data?.troubles.some(t => t.kind === "late");
  const empty = worst.data?.topics.length === 0 && !s.total.scheduled && !s.total.pending && !s.missing.length;
  return html`<${View} title="Overview" lead=${diagnosis.data?.headline} leadPoll=${diagnosis} poll=${stats} part=${[stats, worst, hour].map(p => partly(p.data)).find(Boolean)}>
    <${Figures} label="All topics" list=${totals(s, soon, late)} />
    ${empty ? html`<${FirstSteps} may=${may} />` : html`<${Section} id="worst" title="Needs a look" poll=${worst} side=${html`<a href=${link("topics")}>All topics</a>`}>
      <${Table} label="Topics with something wrong, the worst first" columns=${worstColumns} rows=${wrong} keyOf=${t => t.name}
        empty=${wrong ? "No topic is late, failing or paused, and none has dead tasks." : worst.fault?.message || "Loading…"} />
      ${more ? html`<p class="pages"><a href=${link("topics", "", {sort: "worst"})}>More topics, the worst first</a></p>` : null}
    </${Section}>`}
    ${settled(worst) ? html`<div class="charts"><${LastHour} oldest=${oldestOf(s.total)} diagnosis=${diagnosis.data} /></div>
    <${Forecast} hour=${hour} />
    <${Section} id="fleet" title="Fleet" poll=${nodes} side=${html`<a href=${link("nodes")}>Nodes</a>`}>
      <${Table} label="Nodes" columns=${nodeColumns.filter(c => !c.more)} rows=${nodes.data?.nodes}
        keyOf=${n => n.name} empty=${nodes.fault ? nodes.fault.message : "Loading…"} />
    </${Section}>` : null}
  </${View}>`;
}
