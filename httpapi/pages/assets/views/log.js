// Who did what: the log of actions, the latest first.

import {html, useState} from "../vendor/preact.js";
import {get, post} from "../api.js";
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

// how says what an undo does, by its verb.
const how = {
  pause: "The topic is paused again.", resume: "It goes on.", hold: "Its countdown is held again, with the time that it has left now.", move: "It gets the deadline back that it had.",
  schedule: "The task is scheduled again, with its deadline and all its attempts.", "change-topic": "Its settings become what they were before.",
};

const columns = [
  {head: "When", class: "time", cell: e => html`<time datetime=${e.at} title=${e.at}>${when(e.at)}</time> <span class="soft">${away(e.at)}</span>`},
  {head: "Who", class: "name", cell: e => html`${e.by || html`<span class="soft">without a token</span>`}${e.from ? html`<div class="note">${e.from}</div>` : null}`},
  {head: "What", cell: e => html`${e.verb}${e.unknown ? ", outcome unknown" : ""}${e.undoes ? html`<div class="note">undoes ${e.undoes}</div>` : null}`},
  {head: "On", class: "name", cell: on},
  {head: "Tasks", num: true, cell: e => (e.count ? count(e.count) + (e.partial ? ", not all" : "") : html`<span class="zero">–</span>`)},
  {head: "Detail", class: "grow", cell: e => html`<span class="clamp" title=${short(e)}>${short(e)}</span>`},
];

export function Log({params, may}) {
  const [cursors, setCursors] = usePages(), {topic = ""} = params, [undoing, setUndoing] = useState(null);
  const undo = {head: html`<span class="unseen">Undo</span>`, class: "num", cell: e => (e.undo ? html`<button type="button" class="small" onClick=${() => setUndoing(e)} aria-label=${"Undo " + e.verb + " of " + (e.task ?? e.topic)}>Undo</button>` : null)};
  const poll = usePoll(signal => get("v1/audit", {topic, limit: pageSize, cursor: cursors[cursors.length - 1]}, signal), [topic, cursors.join()], 5000);
  return html`<${View} title=${"Log of actions" + (topic ? " on " + topic : "")} poll=${poll} back=${topic ? {href: link("topics", topic), text: topic} : undefined}>
    ${poll.data?.partial ? html`<p class="hint" role="status">Actions are missing: ${poll.data.partial}</p>` : null}
    ${poll.data ? html`<${Table} label="Actions" columns=${may("admin") ? [...columns, undo] : columns} rows=${poll.data.entries} keyOf=${e => e.id} empty="No action is known. The log has those of operators, for a month." />
      <${Pages} cursors=${cursors} next=${poll.data.next_cursor} go=${setCursors} />` : null}
    ${undoing ? html`<${Ask} title=${"Undo " + undoing.verb + " of " + (undoing.task ?? undoing.topic) + "?"} label="Undo" done="It is undone." act=${() => post("v1/audit/" + undoing.id + "/undo")} onClose=${() => { setUndoing(null); poll.again(); }}>
      <p>${when(undoing.at)}${undoing.by ? ", by " + undoing.by : ""}. ${how[undoing.undo]} It is refused if it was changed again since.</p></${Ask}>` : null}
  </${View}>`;
}
