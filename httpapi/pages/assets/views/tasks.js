// Tasks that wait or are being delivered: found by what they are, soonest first.

import {html, useState} from "../vendor/preact.js";
import {get, now} from "../api.js";
import {away, count, fine, plural, when} from "../format.js";
import {Pages, Pill, Table, View, noneYet, useChosen} from "../parts.js";
import {usePoll} from "../poll.js";
import {link, usePages} from "../route.js";
import {Create} from "./create.js";
import {Bulk, Counted, Filter, selected} from "./filter.js";
import {Many} from "./many.js";

// pageSize keeps a refresh small. Lists come without payloads, which the view of one task shows.
const pageSize = 20;

// windows are the spans of due time that a link can name: of two instants, each may be left open. say
// names their tasks.
const minute = 60_000;
const windows = {
  overdue: {text: "Due and not delivered", say: "that are due and not delivered", of: () => ["", new Date(now()).toISOString()]},
  next10m: {text: "Due in 10 minutes", say: "due in 10 minutes", of: () => [new Date(now()).toISOString(), new Date(now() + 10 * minute).toISOString()]},
  midnight: {text: "Left of what was due by midnight", say: "left of what was due by midnight", of: () => ["", new Date(new Date(now()).setHours(0, 1, 0, 0)).toISOString()]},
};

// queryOf turns the parameters of the address into those of the API.
function queryOf({due, find, topic, group, state, error}) {
  const [from, to] = windows[due]?.of() ?? ["", ""], all = {topic, group, state, error, id_prefix: find, due_from: from, due_to: to};
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value));
}

export const StatePill = ({task: t}) => {
  const overdue = t.state === "ready" && Date.parse(t.next_at) < now() - 5000;
  return html`<${Pill} bad=${t.state === "dead" || overdue}>${t.state === "pending" && t.attempt > 0 ? "retrying" : t.state}</${Pill}>`;
};

const isHeld = t => t.state === "held";
const isOver = t => t.state === "dead" || t.state === "finished";

// next says when a task's next attempt is; fromNow how far that is, or since when there is none.
const next = t => (isHeld(t) || isOver(t) ? html`<span class="zero">–</span>` : html`<span title=${t.next_at}>${when(t.next_at)}</span>`);
const fromNow = t => (isHeld(t) ? fine(t.remaining) + " left" : t.state === "dead" ? "died " + away(t.died_at) : t.state === "finished" ? "ended " + away(t.finished_at) : away(t.next_at));

// TopicLink leads to a topic, for those who may see it: may("read").
export const TopicLink = ({name, may}) => (may("read") ? html`<a href=${link("topics", name)}>${name}</a>` : name);

export const taskColumns = may => [
  {head: "Task", cell: t => html`<a class="id" href=${link("tasks", t.id)}>${t.id}</a>`},
  {head: "Topic", class: "name", cell: t => html`<${TopicLink} name=${t.topic} may=${may} />${t.group ? html`<div class="note">group ${t.group}</div>` : null}`},
  {head: "State", class: "state", cell: t => html`<${StatePill} task=${t} />`},
  {head: "Next attempt", class: "time", num: true, cell: next},
  {head: "From now", class: "time", num: true, cell: t => html`<span class="soft">${fromNow(t)}</span>`},
  {head: "Attempts", num: true, cell: t => count(t.attempt)},
  {head: "Last error", class: "grow", cell: t => html`<span class="clamp" title=${t.last_error}>${t.last_error}</span>`},
];

// finishedColumns are those of tasks that have ended.
const finishedColumns = may => [
  ...taskColumns(may).slice(0, 2),
  {head: "Outcome", class: "state", cell: t => t.outcome || "not known"},
  {head: "Ended", class: "time", num: true, cell: t => html`<span title=${t.finished_at}>${when(t.finished_at)}</span>`},
  {head: "From now", class: "time", num: true, cell: t => html`<span class="soft">${away(t.finished_at)}</span>`},
  ...taskColumns(may).slice(-2),
];

const states = [{value: "", text: "any not ended"}, "pending", "retrying", "held", "ready", "delivering", "finished"];

const fields = [
  {name: "find", label: "Beginning of the id"}, {name: "topic", label: "Topic"}, {name: "group", label: "Group"},
  {name: "state", label: "State", options: states}, {name: "error", label: "Text in the last error"},
  {name: "due", label: "Due", options: [{value: "", text: "at any time"}, ...Object.entries(windows).map(([value, w]) => ({value, text: w.text}))]},
];

const says = {
  topic: v => "of " + v, group: v => "in group " + v, state: v => (v === "pending" || v === "retrying" ? "that wait for " + (v === "pending" ? "their time" : "another attempt") : "that are " + v),
  due: v => windows[v]?.say, error: v => "with “" + v + "” in their last error", find: v => "whose ids begin with " + v,
};

// refusal says why the server would not list what is asked for, "" if it does.
function refusal({state, topic, due}) {
  if (state !== "finished") return "";
  if (!topic) return "Finished tasks are listed of one topic: name it. They are kept where the topic says so.";
  return due ? "Finished tasks are not found by their deadline: leave it out." : "";
}

export function Tasks({params, may}) {
  const [cursors, setCursors] = usePages(), [doing, setDoing] = useState(null), [differs, setDiffers] = useState(false), [creating, setCreating] = useState(false);
  const poll = usePoll(signal => (refusal(params) ? {tasks: []} : get("v1/tasks", {...queryOf(params), details: false, limit: pageSize, cursor: cursors[cursors.length - 1]}, signal)), [JSON.stringify(params), cursors.join()], 5000);
  const page = poll.data, {here, column, all, none} = useChosen(page?.tasks || []), filtered = Object.keys(params).length > 0;
  const ended = params.state === "finished";
  const acts = may("schedule") && (here.length ? !here.every(isOver) : filtered && page?.tasks.some(t => !isOver(t)));
  // A filter of another state selects none to resume.
  const resumes = here.length ? here.some(isHeld) : ["", "held"].includes(params.state ?? "") && page?.tasks.some(isHeld);
  const holds = here.length ? !here.every(isHeld) : params.state !== "held";
  const ask = action => setDoing(here.length ? {action, ids: here.map(t => t.id)} : {action, filter: queryOf(params), of: selected(params, says)});
  const which = here.length ? plural(here.length, "task") : "all of these";
  const empty = refusal(params) || (page?.next_cursor ? noneYet : "No task is as the filter says.");
  return html`<${View} title="Tasks" poll=${poll} actions=${may("schedule") ? html`<button type="button" onClick=${() => setCreating(true)}>New task</button>` : null}>
    ${creating ? html`<${Create} topic=${params.topic} onClose=${() => setCreating(false)} />` : null}
    <${Filter} view="tasks" params=${params} fields=${fields} differs=${setDiffers} />
    ${refusal(params) ? null : html`<${Counted} query=${() => queryOf(params)} of=${selected(params, says)} />`}
    ${acts ? html`<${Bulk} differs=${differs} chosen=${here.length}>
      <button type="button" onClick=${() => ask("move")}>Move ${which}</button>
      <button type="button" onClick=${() => ask("fire")}>Fire ${which}</button>
      ${holds ? html`<button type="button" onClick=${() => ask("hold")}>Hold ${which}</button>` : null}
      ${resumes ? html`<button type="button" onClick=${() => ask("resume")}>Resume ${here.length || params.state ? which : "those that are held"}</button>` : null}
      <button type="button" onClick=${() => ask("cancel")}>Cancel ${which}</button></${Bulk}>` : null}
    ${may("schedule") && !ended ? all : null}
    ${page ? html`<${Table} label="Tasks" columns=${ended ? finishedColumns(may) : may("schedule") ? [column, ...taskColumns(may)] : taskColumns(may)} rows=${page.tasks} keyOf=${t => t.id} empty=${empty} />
      <${Pages} cursors=${cursors} next=${page.next_cursor} go=${c => { setCursors(c); none(); }} />` : null}
    ${doing ? html`<${Many} ...${doing} onClose=${() => { setDoing(null); none(); poll.again(); }} />` : null}
  </${View}>`;
}
