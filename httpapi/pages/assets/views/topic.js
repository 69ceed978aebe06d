// One topic: how it does, what waits in it, and what it is set to.

import {html, useState} from "../vendor/preact.js";
import {call, get, post, topicPath} from "../api.js";
import {Copy, curlOf} from "../copy.js";
import {age, away, count, lateFigure, plural, span, when} from "../format.js";
import {Fault, Figures, Pill, Section, Table, View, announce, settled, useAction} from "../parts.js";
import {usePoll} from "../poll.js";
import {backTo, link} from "../route.js";
import {has, remedy, sentence} from "../trouble.js";
import {Create} from "./create.js";
import {LastHour} from "./lasthour.js";
import {Forecast, forecastOfHour, oldestOf, overdue} from "./overview.js";
import {Settings, settingsInWords} from "./settings.js";

export function Topic({name, diagnosis, may}) {
  const poll = usePoll(async signal => {
    const {value, etag} = await call("GET", topicPath(name), {signal});
    return {...value, etag};
  }, [name]);
  const hour = usePoll(signal => forecastOfHour(name, signal), [name], 10_000);
  const waiting = usePoll(signal => get("v1/tasks", {topic: name, state: "ready", details: false, limit: 5}, signal), [name], 5000);
  const retrying = usePoll(signal => get("v1/tasks", {topic: name, state: "retrying", details: false, limit: 5}, signal), [name], 5000);
  const [editing, setEditing] = useState(false), [creating, setCreating] = useState(false), switching = useAction(), t = poll.data;
  const back = backTo("topics");
  if (!t) {
    const unknown = poll.fault?.status === 404;
    return html`<${View} title=${name} poll=${unknown ? undefined : poll} back=${back}>
      ${unknown ? html`<p class="empty">No node has met this topic. It appears with its first task, or when it is set up.</p>` : null}</${View}>`;
  }
  const pause = () => switching.run(async () => {
    await post(topicPath(name) + (t.paused ? "/resume" : "/pause"));
    announce(name + (t.paused ? " is delivered again." : " is paused."));
    poll.again();
  });
  const actions = may("schedule") || may("admin") ? html`${may("schedule") ? html`<button type="button" onClick=${() => setCreating(true)}>New task</button>` : null}${may("admin") ? html`<button type="button" onClick=${pause} disabled=${switching.busy}>${t.paused ? "Resume" : "Pause"}</button>
    <button type="button" onClick=${() => setEditing(true)}>Edit settings</button>` : null}` : null;
  return html`<${View} title=${name} poll=${poll} back=${back} actions=${actions}
      lead=${html`${name} ${t.paused ? html`<${Pill} warn>paused</${Pill}>` : null}`}>
    <${Fault} fault=${switching.fault} />
    <${Trouble} topic=${t} />
    <${Figures} label="Tasks of the topic" list=${figures(t)} />
    <div class="two">
      <${Section} title="Oldest waiting" poll=${waiting} side=${html`<a href=${link("tasks", "", {topic: name, state: "ready"})}>All that wait</a>`}>
        <${Table} label="Tasks that wait longest" columns=${waitingColumns} rows=${waiting.data?.tasks} keyOf=${w => w.id}
          empty=${waiting.fault ? waiting.fault.message : waiting.data ? "None waits: all that was due is handed out." : "Loading…"} />
      </${Section}>
      <${LastErrors} topic=${t} retrying=${retrying} />
    </div>
    ${settled(waiting) && settled(retrying) ? html`<div class="charts"><${LastHour} topic=${name} oldest=${oldestOf(t.counts)} diagnosis=${diagnosis.data} /></div>
    <${Forecast} topic=${name} hour=${hour} />
    <${Section} title="Settings" side=${html`<a href=${link("log", "", {topic: name})}>Who changed them</a> · ${t.revision === 0 ? "defaults" : "revision " + t.revision} <${Copy} text=${() => curlOf("GET", topicPath(name))} what="the call for the topic as curl" label="Copy as curl" />`}>
      <dl class="facts wide">${settingsInWords(t).map(([what, value]) => html`<dt key=${what}>${what}</dt><dd>${value}</dd>`)}</dl>
    </${Section}>` : null}
    ${creating ? html`<${Create} topic=${name} onClose=${() => setCreating(false)} />` : null}
    ${editing ? html`<${Settings} topic=${t} onClose=${() => setEditing(false)} saved=${poll.again} />` : null}
  </${View}>`;
}

const waitingColumns = [
  {head: "Task", cell: w => html`<a class="id" href=${link("tasks", w.id)}>${w.id}</a>`},
  {head: "Waits for", num: true, cell: w => span(age(w.next_at))},
  {head: "Attempts", num: true, cell: w => count(w.attempt)},
];

const errorColumns = [
  {head: "Retries", cell: r => html`<a class="id" href=${link("tasks", r.id)}>${r.id}</a>`},
  {head: "Attempts", num: true, cell: r => count(r.attempt)},
  {head: "Next", num: true, cell: r => away(r.next_at)},
  {head: "Last error", class: "grow", cell: r => html`<span class="clamp" title=${r.last_error}>${r.last_error}</span>`},
];

// LastErrors tells why attempts have failed: the last one of the topic, and those of tasks that will be
// tried again. What is dead has a view of its own.
function LastErrors({topic: t, retrying}) {
  const tasks = retrying.data?.tasks, dead = t.counts.dead;
  return html`<${Section} id="errors" title="Last errors" poll=${retrying}
      side=${dead ? html`<a href=${link("dead", "", {topic: t.name})}>Those of ${plural(dead, "dead task")}</a>` : null}>
    <p class="empty">${t.last_failed_at ? html`<time datetime=${t.last_failed_at}>${when(t.last_failed_at)}</time>, ${away(t.last_failed_at)}: ${t.last_error} <${Copy} text=${t.last_error} what="the error" />`
      : "No attempt has failed since the start."}</p>
    ${tasks?.length ? html`<${Table} label="Tasks that will be tried again" columns=${errorColumns} rows=${tasks} keyOf=${r => r.id} />` : null}
  </${Section}>`;
}

// Trouble says in sentences what is wrong.
function Trouble({topic: t}) {
  const list = t.troubles?.filter(x => x.grave) || [];
  return list.length ? html`<div class="fault" id="trouble">${list.map(x => html`<p key=${x.kind}>${sentence(x)} ${remedy(x)}</p>`)}</div>` : null;
}

function figures(t) {
  const c = t.counts, failed = c.failed;
  return [
    overdue(c, !t.paused),
    {name: "ready", label: "Ready", value: count(c.ready), bad: has(t, "late"), href: link("tasks", "", {topic: t.name, state: "ready"}),
      note: c.ready_oldest_at ? "the oldest " + span(age(c.ready_oldest_at)) : "all that was due is handed out"},
    {name: "delivering", label: "Being delivered", value: count(c.delivering), href: link("tasks", "", {topic: t.name, state: "delivering"}),
      note: t.delivery.kind === "pull" ? "" : "at most " + count(t.concurrency_now) + " a node"},
    ...(t.delivery.kind === "pull" ? [{name: "receivers", label: "Receivers waiting", value: count(c.receivers), bad: c.receivers === 0 && c.ready > 0,
      note: c.receivers ? "for tasks of this topic" : "none pulls now"}] : []),
    {name: "pending", label: "Pending", value: count(c.pending), href: link("tasks", "", {topic: t.name, state: "pending"}),
      note: c.retrying ? count(c.retrying) + " retrying" : "none is retrying"},
    {name: "dead", label: "Dead", value: count(c.dead), bad: c.dead > 0, href: link("dead", "", {topic: t.name}),
      note: c.dead_oldest_at ? "the oldest " + away(c.dead_oldest_at) : ""},
    lateFigure(c.recent, t),
    {name: "delivered", label: "Delivered", value: count(c.delivered), note: "since the nodes started"},
    {name: "failed", label: "Failed attempts", value: count(failed), note: (t.last_failed_at ? "the last " + away(t.last_failed_at) : "none") + ", since the nodes started"},
  ];
}
