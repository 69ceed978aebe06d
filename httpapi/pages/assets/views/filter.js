// The filter of a list: a form that changes the address, and the words for what the address selects.

import {html, useLayoutEffect, useState} from "../vendor/preact.js";
import {get} from "../api.js";
import {count, plural} from "../format.js";
import {Fault, Field} from "../parts.js";
import {usePoll} from "../poll.js";
import {go, link} from "../route.js";

const written = form => Object.fromEntries(Object.entries(form).map(([name, value]) => [name, (value ?? "").trim()]).filter(([, value]) => value));
const text = form => JSON.stringify(Object.entries(written(form)).sort());

// Filter is the form above a list whose parameters are params. fixed are those that it does not ask for,
// fields the others: {name, label}, with options for what is chosen. differs is called with whether
// the form says something else than the list shows: then nothing may be done with all of the list.
export function Filter({view, params, fixed = {}, fields, differs}) {
  const [form, set] = useState(params), other = text(form) !== text(params);
  useLayoutEffect(() => differs(other), [other]);
  const lead = to => go(link(view, "", written(to)));
  // What is chosen holds at once; what is typed, when it is complete.
  const field = ({name, label, options}) => html`<${Field} key=${name} ...${{name, label, options}} value=${form[name] ?? ""}
    onInput=${value => (options ? lead({...form, [name]: value}) : set(f => ({...f, [name]: value})))} />`;
  const submit = e => {
    e.preventDefault();
    lead(form);
  };
  return html`<form class="filters" onSubmit=${submit} aria-label="Filter">
    ${fields.map(field)}
    <div class="actions"><button type="submit" class="main">Find</button>
      ${other || text(params) !== text(fixed) ? html`<button type="button" onClick=${() => { set(fixed); lead(fixed); }}>Clear</button>` : null}</div>
  </form>`;
}

// selected says in words which tasks params select: "of proof in group g1". says has for each parameter
// its words, in the order of speaking.
export const selected = (params, says) => Object.entries(says).filter(([name]) => params[name]).map(([name, say]) => say(params[name])).join(" ");

// Bulk has the buttons that change many tasks. While the form says something else than the list shows,
// it has none for what is not chosen one by one.
export const Bulk = ({differs, chosen, children}) => html`<div class="bulk">${differs && !chosen
  ? html`<p class="hint" role="status">The form has changed: press Find to see what it selects, before you change it.</p>` : children}</div>`;

const states = ["pending", "ready", "delivering", "dead", "finished"];

// allOf is how many tasks an answer has counted.
export const allOf = answer => states.reduce((sum, s) => sum + answer.total[s], 0);

// notCounted says what a count has not looked at, "" if it is complete.
export function notCounted(c) {
  if (c.complete) return "";
  const some = c.looked_at < c.of ? " About " + count(c.looked_at) + " of " + plural(c.of, "task") + " were looked at." : "";
  return some + (c.missing.length ? " Without those of " + c.missing.map(m => m.node || "the other nodes").join(", ") + "." : "");
}

// countPeriod is how often the tasks of a list are counted, in ms: each node looks at all of its tasks
// then.
const countPeriod = 10_000;

// Counted is the line over a list: how many tasks query selects, by state. of are the words for that.
export function Counted({query, of}) {
  const poll = usePoll(signal => get("v1/counts", {...query(), limit: 0}, signal), [JSON.stringify(of)], countPeriod), c = poll.data;
  if (!c) return poll.fault ? html`<${Fault} fault=${poll.fault} again=${poll.again} />` : html`<p class="hint soft" id="count">Counting…</p>`;
  const parts = states.filter(s => c.total[s]).map(s => count(c.total[s]) + " " + s
    + (s === "pending" && c.total.retrying ? " (" + count(c.total.retrying) + " retrying)" : "") + (s === "pending" && c.total.held ? " (" + count(c.total.held) + " held)" : ""));
  const sum = parts.length ? parts.join(", ") : c.complete ? "No task" : "No task yet";
  return html`<p class="hint soft" id="count" role="status">${c.complete || !parts.length ? "" : "At least "}${sum}${of ? " " + of : ""}.${notCounted(c)}${poll.fault ? " Counted earlier: " + poll.fault.message : ""}</p>`;
}
