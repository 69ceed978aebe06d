// Dead tasks: what died and why, and what becomes of them.

import {html, useEffect, useState} from "../vendor/preact.js";
import {get, now, topicPath} from "../api.js";
import {away, count, plural, when} from "../format.js";
import {Fault, Pages, Section, Table, View, noneYet, settled, useChosen} from "../parts.js";
import {usePoll} from "../poll.js";
import {link, usePages} from "../route.js";
import {Bulk, Counted, Filter, selected} from "./filter.js";
import {Many} from "./many.js";

const pageSize = 11;
const reasonTexts = {exhausted: "attempts used up", buried: "buried by its receiver", deleted: "its topic was deleted"};

const midnight = days => {
  const d = new Date(now());
  d.setHours(0, 0, 0, 0);
  d.setDate(d.getDate() + days);
  return d.toISOString();
};

// windows are the spans of time of death that a link can name.
const windows = {
  // By whole minutes, so that the server can use an answer again.
  hour: {text: "in the last hour", of: () => [new Date(Math.floor(now() / 60_000 - 60) * 60_000).toISOString(), ""]},
  today: {text: "today", of: () => [midnight(0), ""]},
  yesterday: {text: "yesterday", of: () => [midnight(-1), midnight(0)]},
};

// topicsShown is how many topics the list of topics with dead tasks has a page.
const topicsShown = 15;

export const Dead = ({params, stats, may}) => (params.topic ? html`<${OfTopic} params=${params} may=${may} />` : html`<${ByTopic} stats=${stats} may=${may} />`);

const topicColumns = [
  {head: "Topic", cell: t => html`<a href=${link("dead", "", {topic: t.name})}>${t.name}</a>`},
  {head: "Dead", num: true, cell: t => count(t.counts.dead)},
  {head: "Oldest died", class: "time", num: true, cell: t => (t.counts.dead_oldest_at ? away(t.counts.dead_oldest_at) : "")},
  {head: "Used up, since start", num: true, cell: t => count(t.counts.attempts.exhausted), note: "Deliveries of the topic that were the last attempt of their task, since the nodes started"},
  {head: "Buried, since start", num: true, cell: t => count(t.counts.attempts.buried), note: "Tasks of the topic that a receiver has buried, since the nodes started"},
  {head: "Last error of the topic", class: "grow", cell: t => html`<span class="clamp" title=${t.last_error}>${t.last_error}</span>`},
];

// whyShown is how many reasons are shown.
const whyShown = 8;

// Why counts dead tasks by reason and error, those that query selects. Each reason leads to its tasks;
// of are the parameters that the address keeps. chosen has those of the reason that it names. settles is
// called once it is known how high it is.
function Why({path, query, of, chosen, byTopic, settles}) {
  const poll = usePoll(signal => get(path, {...query(), limit: whyShown}, signal), [path, JSON.stringify(of)], 5000), why = poll.data, over = settled(poll);
  useEffect(() => { if (over) settles?.(); }, [over]);
  if (!why) return poll.fault ? html`<${Section} title="Why"><${Fault} fault=${poll.fault} again=${poll.again} /></${Section}>` : null;
  if (!why.reasons.length && why.complete) return null;
  const is = r => chosen && r.error === chosen.error_like && (r.reason || "") === (chosen.reason || "");
  const text = r => (r.reason === "deleted" ? reasonOf(r) : r.error === "(none)" ? "no error" : r.error);
  const to = r => link("dead", "", is(r) ? of : {...of, topic: r.topic, reason: r.reason, error_like: r.error});
  const columns = [
    {head: "Error", class: "grow", cell: r => html`<a href=${to(r)} aria-current=${is(r) ? "true" : undefined} title=${r.example}><span class="clamp">${text(r)}</span></a>`},
    {head: "Tasks", num: true, cell: r => count(r.count)},
    ...(byTopic ? [{head: "Topic", cell: r => r.topic}] : []),
    {head: "Reason", class: "whole", cell: r => html`<span class="soft">${reasonOf(r)}</span>`},
    {head: "First died", class: "time", num: true, cell: r => html`<span title=${r.first_died_at}>${when(r.first_died_at)}</span>`},
    {head: "Last died", class: "time", num: true, cell: r => html`<span title=${r.last_died_at}>${when(r.last_died_at)}</span>`},
  ];
  const notes = [
    why.left_out ? plural(why.left_out, "task") + " more for other reasons." : "",
    !why.complete && !why.missing.length ? count(why.looked_at) + " of " + plural(why.dead, "dead task") + " were looked at, the longest dead first." : "",
    why.missing.length ? "Without the dead of " + why.missing.map(m => m.node || "the other nodes").join(", ") + "." : "",
  ].filter(Boolean).join(" ");
  return html`<${Section} id="why" title="Why" poll=${poll} side=${chosen ? html`<a href=${link("dead", "", of)}>All reasons</a>` : null}>
    <${Table} label="Reasons" columns=${columns} rows=${why.reasons} keyOf=${r => r.topic + "\n" + r.reason + "\n" + r.error} rowClass=${r => (is(r) ? "chosen" : undefined)}
      empty="None among those that were looked at." />
    ${notes ? html`<p class="hint soft">${notes}</p>` : null}
  </${Section}>`;
}

function ByTopic({stats, may}) {
  const [cursors, setCursors] = usePages(), [doing, setDoing] = useState(null);
  const poll = usePoll(signal => get("v1/topics", {sort: "dead", limit: topicsShown, cursor: cursors[cursors.length - 1]}, signal), [cursors.join()], 5000);
  const [high, setHigh] = useState(false), topics = poll.data?.topics.filter(t => t.counts.dead > 0), dead = stats.data?.total.dead;
  return html`<${View} title="Dead tasks" poll=${poll} leadPoll=${stats} lead=${dead === undefined ? "Dead tasks" : dead ? plural(dead, "dead task") : "No task is dead"}>
    ${topics?.length ? html`<${Why} path="v1/dead/reasons" query=${() => ({})} of=${{}} byTopic=${true} settles=${() => setHigh(true)} />` : null}
    ${topics && (high || !topics.length) ? html`<${Section} title="Topics"><${Counted} query=${() => ({state: "dead"})} of="of all topics" />
      ${may("admin") && topics.length ? html`<${Bulk}><button type="button" onClick=${() => setDoing({action: "requeue", filter: {died_to: justAfter([])}, of: "of all topics", dead: true, slowly: true})}>Requeue slowly</button></${Bulk}>` : null}
      <${Table} label="Topics with dead tasks" columns=${topicColumns} rows=${topics} keyOf=${t => t.name}
        empty="A task is dead when its attempts are used up, or when its receiver buries it." />
      <${Pages} cursors=${cursors} next=${topics.length === poll.data.topics.length ? poll.data.next_cursor : ""} go=${setCursors} /></${Section}>` : null}
    ${doing ? html`<${Many} ...${doing} onClose=${() => { setDoing(null); poll.again(); }} />` : null}
  </${View}>`;
}

// whyOf is the error of a dead task. Of one whose topic was deleted, the reason says the same.
const whyOf = t => (t.reason === "deleted" ? "" : t.last_error);

const reasonOf = t => reasonTexts[t.reason] || "not known";

// justAfter is the time of the last death that the page may show: now, by a clock that may be behind
// the ones of the nodes.
const justAfter = tasks => new Date(Math.max(now(), ...tasks.map(t => Date.parse(t.died_at) + 1))).toISOString();

const fields = [
  {name: "reason", label: "Reason", options: [{value: "", text: "any"}, ...Object.entries(reasonTexts).map(([value, text]) => ({value, text}))]},
  {name: "died", label: "Died", options: [{value: "", text: "at any time"}, ...Object.entries(windows).map(([value, w]) => ({value, text: w.text}))]},
  {name: "error", label: "Text in the last error"}, {name: "id_prefix", label: "Id begins"}, {name: "group", label: "Group"},
];

const says = {
  topic: v => "of " + v, group: v => "in group " + v, died: v => "that died " + windows[v]?.text, reason: v => "with " + reasonTexts[v],
  error: v => "with “" + v + "” in their last error", error_like: v => "with the error “" + v + "”", id_prefix: v => "whose ids begin with " + v,
};

// filterOf is what an action selects for the parameters of the address.
function filterOf({topic, reason, error, error_like, group, id_prefix, died}) {
  const [from, to] = windows[died]?.of() ?? ["", ""], all = {topic, reason, error, error_like, group, id_prefix, died_from: from, died_to: to};
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value));
}

function OfTopic({params, may}) {
  const {topic, ...filters} = params, filtered = Object.keys(filters).length > 0;
  const [cursors, setCursors] = usePages(), [doing, setDoing] = useState(null), [differs, setDiffers] = useState(false);
  const poll = usePoll(signal => {
    const {topic: _, ...query} = filterOf(params);
    return get(topicPath(topic) + "/dead", {...query, details: false, limit: pageSize, cursor: cursors[cursors.length - 1]}, signal);
  }, [JSON.stringify(params), cursors.join()], 5000);
  const tasks = poll.data?.tasks || [], acts = may("admin"), {here, column, all, none} = useChosen(tasks);
  // What is asked about stays as it is until the answer: tasks that die meanwhile do not belong to it.
  const ask = action => setDoing(here.length ? {action, ids: here.map(t => t.id)}
    : {action, filter: {died_to: justAfter(tasks), ...filterOf(params)}, of: selected(params, says), dead: true});
  const which = here.length ? plural(here.length, "task") : filtered ? "all of these" : "all";
  // The reasons are those of all that the other parameters select, so that another one can be chosen.
  const {error_like: like, ...others} = params;
  if (like) delete others.reason;
  return html`<${View} title=${"Dead of " + topic} lead=${html`Dead of ${topic}`} poll=${poll} back=${{href: link("dead"), text: "Dead tasks"}}>
    <${Filter} view="dead" params=${params} fixed=${{topic}} fields=${fields} differs=${setDiffers} />
    <${Why} path=${topicPath(topic) + "/dead/reasons"} query=${() => { const {topic: _, ...query} = filterOf(others); return query; }} of=${others} chosen=${like ? params : null} />
    <${Section} title="Tasks" side=${html`<a href=${link("topics", topic)}>The topic</a>`}>
      <${Counted} query=${() => ({...filterOf(params), state: "dead"})} of=${selected(params, says)} />
      ${acts && tasks.length ? html`<${Bulk} differs=${differs} chosen=${here.length}>
        <button type="button" onClick=${() => ask("requeue")}>Requeue ${which}</button>
        <button type="button" onClick=${() => ask("delete")}>Delete ${which}</button></${Bulk}>` : null}
      ${acts ? all : null}
      ${poll.data ? html`<${Table} label="Dead tasks" columns=${acts ? [column, ...columns] : columns} rows=${tasks} keyOf=${t => t.id}
        empty=${poll.data.next_cursor ? noneYet : filtered ? "No dead task is as the filter says." : "No task of this topic is dead."} />
      <${Pages} cursors=${cursors} next=${poll.data.next_cursor} go=${c => { setCursors(c); none(); }} />` : null}
    </${Section}>
    ${doing ? html`<${Many} ...${doing} onClose=${() => { setDoing(null); none(); poll.again(); }} />` : null}
  </${View}>`;
}

const columns = [
  {head: "Task", cell: t => html`<a class="id" href=${link("tasks", t.id)}>${t.id}</a>`},
  {head: "Died", class: "time", num: true, cell: t => html`<span title=${t.died_at}>${when(t.died_at)}</span>`},
  {head: "Attempts", num: true, cell: t => count(t.attempt)},
  {head: "Why", class: "grow", cell: t => html`<span class="clamp" title=${whyOf(t)}>${whyOf(t)}</span>`},
  {head: "Reason", class: "whole", cell: t => html`<span class="soft">${reasonOf(t)}</span>`},
];
