// Who did what: the log of actions, the latest first.

import {html, useState} from "../vendor/preact.js";
import {call, get, post, topicPath} from "../api.js";
import {away, count, when} from "../format.js";
import {Ask, Pages, Table, View} from "../parts.js";
import {usePoll} from "../poll.js";
import {link, usePages} from "../route.js";

const pageSize = 20;

// short is a detail for one line: its JSON without quotes, and what the settings were before.
const short = e => [e.detail?.replaceAll('"', ""), e.before ? "before: " + e.before.replaceAll('"', "") : ""].filter(Boolean).join("; ");

// on says what an act was about.
const on = e => [e.topic ? e.topic.includes("*") ? e.topic : html`<a href=${link("topics", e.topic)}>${e.topic}</a>` : null, e.group ? html` group ${e.group}` : null,
  e.task ? html` <a class="id" href=${link("tasks", e.task)}>${e.task}</a>` : null, e.target ? html` <code>${e.target}</code>` : null];

// undoOf is the call that takes an act on a topic back: null if none does. Tasks are resumed too, which
// is no act on their topic. An entry lacks a delivery, which may be secret, and what is long: such
// settings are not taken back. Others are refused if another caller has changed them since.
function undoOf(e) {
  if (!e.topic || e.task || e.group) return null;
  if (e.verb === "pause" || e.verb === "resume" && !e.detail) return () => post(topicPath(e.topic) + (e.verb === "pause" ? "/resume" : "/pause"));
  if (!["set-topic", "change-topic"].includes(e.verb) || !e.before) return null;
  try {
    const {revision, ...before} = JSON.parse(e.before), {revision: after = revision + 1, ...changed} = JSON.parse(e.detail);
    if (after !== revision + 1) return null; // what was there between is not known
    const same = name => JSON.stringify(changed[name]) === JSON.stringify(before[name]);
    const names = Object.keys(e.verb === "set-topic" ? {...before, ...changed} : changed).filter(name => !same(name));
    const gone = value => (value && typeof value === "object" ? Object.fromEntries(Object.keys(value).map(key => [key, null])) : {});
    const body = Object.fromEntries(names.map(name => [name, before[name] && typeof before[name] === "object" ? {...gone(changed[name]), ...before[name]} : before[name] ?? null]));
    if (!names.length || names.includes("delivery") || Object.values(body).includes("...")) return null;
    return () => call("PATCH", topicPath(e.topic), {body, headers: {"Content-Type": "application/merge-patch+json", "If-Match": '"' + (revision + 1) + '"'}});
  } catch { // it was cut
    return null;
  }
}

const columns = [
  {head: "When", class: "time", cell: e => html`<time datetime=${e.at} title=${e.at}>${when(e.at)}</time> <span class="soft">${away(e.at)}</span>`},
  {head: "Who", class: "name", cell: e => html`${e.by || html`<span class="soft">without a token</span>`}${e.from ? html`<div class="note">${e.from}</div>` : null}`},
  {head: "What", cell: e => e.verb + (e.unknown ? ", outcome unknown" : "")},
  {head: "On", class: "name", cell: on},
  {head: "Tasks", num: true, cell: e => (e.count ? count(e.count) + (e.partial ? ", not all" : "") : html`<span class="zero">–</span>`)},
  {head: "Detail", class: "grow", cell: e => html`<span class="clamp" title=${short(e)}>${short(e)}</span>`},
];

export function Log({params, may}) {
  const [cursors, setCursors] = usePages(), {topic = ""} = params, [undoing, setUndoing] = useState(null);
  const undo = {head: html`<span class="unseen">Undo</span>`, class: "num", cell: e => (undoOf(e) ? html`<button type="button" class="small" onClick=${() => setUndoing(e)} aria-label=${"Undo " + e.verb + " of " + e.topic}>Undo</button>` : null)};
  const poll = usePoll(signal => get("v1/audit", {topic, limit: pageSize, cursor: cursors[cursors.length - 1]}, signal), [topic, cursors.join()], 5000);
  return html`<${View} title=${"Log of actions" + (topic ? " on " + topic : "")} poll=${poll} back=${topic ? {href: link("topics", topic), text: topic} : undefined}>
    ${poll.data?.partial ? html`<p class="hint" role="status">Actions are missing: ${poll.data.partial}</p>` : null}
    ${poll.data ? html`<${Table} label="Actions" columns=${may("admin") ? [...columns, undo] : columns} rows=${poll.data.entries} keyOf=${e => e.id} empty="No action is known. The log has those of operators, for a month." />
      <${Pages} cursors=${cursors} next=${poll.data.next_cursor} go=${setCursors} />` : null}
    ${undoing ? html`<${Ask} title=${"Undo " + undoing.verb + " of " + undoing.topic + "?"} label="Undo" done="It is undone." act=${undoOf(undoing)} onClose=${() => { setUndoing(null); poll.again(); }}>
      <p>${when(undoing.at)}${undoing.by ? ", by " + undoing.by : ""}. ${undoing.before && undoing.verb.endsWith("topic") ? "Its settings become what they were before, unless they were changed again since." : ""}</p></${Ask}>` : null}
  </${View}>`;
}
