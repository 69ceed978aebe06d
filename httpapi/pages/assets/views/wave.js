// A wave: all tasks that were due within a span, by topic and fate. It says whether it is through,
// how far it is, and when it will be.

import {html, useState} from "../vendor/preact.js";
import {get, now} from "../api.js";
import {byClock, count, fromInput, hourMinute, localInput, plural, span, when} from "../format.js";
import {Field, Figures, Section, Table, View} from "../parts.js";
import {usePoll} from "../poll.js";
import {go, link, waveOf} from "../route.js";

const minute = 60_000;

const dash = html`<span class="zero">0</span>`;
const n = key => c => (c[key] ? count(c[key]) : dash);
const ended = c => c.delivered + c.dead + c.cancelled + c.skipped;

// settled reports whether nothing is left of a wave but what is held.
const settled = c => ended(c) >= c.due - c.held;

// ends says when the last task has ended, or will.
const ends = c => (c.through_at ? "through since " + when(c.through_at) : c.ends_at ? "by " + when(c.ends_at) + ", at " + count(Math.round(c.rate)) + " a second" : settled(c) ? "–" : "not at the rate of now");

const columns = [
  {head: "Topic", cell: t => (t.more ? t.name : html`<a href=${link("topics", t.name)}>${t.name}</a>`)},
  {head: "Due", num: true, cell: n("due")},
  {head: "Delivered", num: true, cell: n("delivered")},
  {head: "Waiting", num: true, cell: n("waiting"), note: "For their time, or for a receiver"},
  {head: "Delivering", class: "spare", num: true, cell: n("delivering")},
  {head: "Retrying", num: true, cell: n("retrying")},
  {head: "Held", class: "spare", num: true, cell: n("held")},
  {head: "Dead", num: true, cell: t => (t.dead && !t.more ? html`<a href=${link("dead", "", {topic: t.name})}>${count(t.dead)}</a>` : n("dead")(t))},
  {head: "Cancelled", class: "spare", num: true, cell: t => n("sum")({sum: t.cancelled + t.skipped}), note: "Or given up undelivered, for it was too late"},
  {head: "Through", num: true, cell: t => Math.floor(t.progress * 100) + " %"},
  {head: "End", class: "grow", cell: ends},
];

// headline says how far a wave is.
function headline(w, whole) {
  const c = w.total, from = Date.parse(w.from);
  if (!c.due) return from > now() ? "Nothing falls due then." : "Nothing is known of tasks that were due then.";
  if (from > now() && !ended(c)) return plural(c.due, "task") + " " + (c.due === 1 ? "falls" : "fall") + " due.";
  const over = settled(c);
  if (over && whole) return (c.due === 1 ? "The task is" : "All " + count(c.due) + " tasks are") + " through" + (c.through_at ? ", since " + when(c.through_at) : "") + (c.held ? ", but " + count(c.held) + " that are held" : "") + ".";
  return count(ended(c)) + " of " + plural(c.due, "task") + " are through" + (whole ? "" : ", as far as it is known") + ".";
}

// took says for how long a wave has gone on, if it has begun and something was due.
function took({total: c}, from) {
  if (c.through_at) return " It took " + span(Math.max(0, Date.parse(c.through_at) - from)) + ".";
  return from < now() && !settled(c) ? " It has taken " + span(now() - from) + " so far." : "";
}

function figures(w) {
  const c = w.total, left = c.due - ended(c);
  return [
    {name: "due", label: "Due", value: count(c.due)},
    {name: "delivered", label: "Delivered", value: count(c.delivered)},
    {name: "left", label: "Left", value: count(left), note: c.oldest_at ? "the oldest was due " + when(c.oldest_at) : ""},
    {name: "retrying", label: "Retrying", value: count(c.retrying), bad: c.retrying > 0},
    {name: "dead", label: "Dead", value: count(c.dead), bad: c.dead > 0},
    {name: "end", label: c.through_at ? "Through since" : "Expected end", value: c.through_at || c.ends_at ? when(c.through_at || c.ends_at) : "–", note: c.ends_at ? "at " + count(Math.round(c.rate)) + " a second" : settled(c) || Date.parse(w.from) > now() ? "" : "nothing is delivered at the moment"},
  ];
}

// Span asks for another span.
function Span({from, to, topic}) {
  const [form, set] = useState({from: localInput(from), minutes: String(Math.round((to - from) / minute)), topic}), change = name => value => set(f => ({...f, [name]: value}));
  const submit = e => {
    e.preventDefault();
    if (form.from) go(waveOf(Date.parse(fromInput(form.from)), Math.min(1500, Math.max(1, Math.round(Number(form.minutes)) || 1)) * minute, form.topic.trim()));
  };
  return html`<form class="filters" onSubmit=${submit} aria-label="Wave">
    <${Field} label=${"Due from, " + byClock()} name="from" type="datetime-local" step="60" value=${form.from} onInput=${change("from")} required />
    <${Field} label="Minutes" name="minutes" value=${form.minutes} onInput=${change("minutes")} inputmode="numeric" />
    <${Field} label="Topic" name="topic" value=${form.topic} onInput=${change("topic")} />
    <div class="actions"><button type="submit" class="main">Show</button></div></form>`;
}

export function Wave({params}) {
  const from = Date.parse(params.from) || Math.floor(now() / minute) * minute, to = Math.max(Date.parse(params.to) || 0, from + minute), topic = params.topic || "";
  const poll = usePoll(signal => get("v1/waves", {from: new Date(from).toISOString(), to: new Date(to).toISOString(), topic}, signal), [from, to, topic], 3000);
  const w = poll.data, whole = w && w.complete && Date.parse(w.since) <= Date.parse(w.from);
  const of = when(from) + (to - from > minute ? " to " + hourMinute(to) : "") + (topic ? ", " + topic : "");
  const rows = w ? [...w.topics, ...(w.beyond ? [{...w.others, name: plural(w.beyond, "other topic"), more: true}] : [])] : [];
  const notes = w ? [w.complete ? "" : "Not all nodes have answered for all of their tasks: what they have is not counted.",
    Date.parse(w.since) > Date.parse(w.from) && from < now() ? "What ended before " + when(w.since) + " is not counted." : "", w.at ? "Counted " + when(w.at) + "." : ""].filter(Boolean).join(" ") : "";
  return html`<${View} title=${"Wave of " + of} poll=${poll} back=${{href: link("overview"), text: "Overview"}}
      actions=${html`<a class="button" href=${waveOf(from - (to - from), to - from, topic)}>Before</a><a class="button" href=${waveOf(to, to - from, topic)}>After</a>`}>
    <${Span} key=${from + " " + to + topic} from=${from} to=${to} topic=${topic} />
    ${w ? html`<p id="wave" class=${"verdict" + (w.total.dead || w.total.retrying ? " bad" : "")} role="status">${headline(w, whole) + " "}
        <progress max="1" value=${w.total.due ? w.total.progress : 0} aria-label="Progress"></progress></p>
      <${Figures} label="The wave" list=${figures(w)} />
      <${Section} title="By topic"><${Table} label="Topics of the wave" columns=${columns} rows=${rows} keyOf=${t => t.name} empty="No task of any topic." />
        <p class="hint soft">${notes}${took(w, from)}</p></${Section}>` : null}
  </${View}>`;
}
