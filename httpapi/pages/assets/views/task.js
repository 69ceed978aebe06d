// One task: its story, what it carries, and what can be done with it.

import {html, useState} from "../vendor/preact.js";
import {Problem, call, now, parse, post, taskPath, topicPath} from "../api.js";
import {Copy, curlOf} from "../copy.js";
import {away, byClock, count, fine, fromInput, localInput, plural, when} from "../format.js";
import {Links} from "../links.js";
import {Ask, Field, Section, View} from "../parts.js";
import {usePoll} from "../poll.js";
import {backTo, link} from "../route.js";
import {StatePill, TopicLink} from "./tasks.js";

export function TaskView({id, may}) {
  const poll = usePoll(async signal => {
    const {value, etag} = await call("GET", taskPath(id), {signal});
    return {...value, etag};
  }, [id], 3000);
  // doing is an action with the task as it was when the question came up: it stays whatever becomes of
  // the task meanwhile.
  const [doing, setDoing] = useState(null), t = poll.data, gone = poll.fault?.status === 404;
  const dialog = doing ? html`<${Doing} key=${doing.action.name} ...${doing} onClose=${() => { setDoing(null); poll.again(); }} />` : null;
  const back = backTo();
  if (gone) {
    return html`<${View} title=${id} back=${back} lead=${html`<span class="id">${id}</span>`}>
      <p class="empty" role="status">
        ${t ? "The task is finished, or was cancelled, meanwhile. " : "No node has a task with this id: it is finished, was cancelled, or never was. "}
        <button type="button" class="plain" onClick=${poll.again}>Look again</button></p>
      ${dialog}</${View}>`;
  }
  if (!t) return html`<${View} title=${id} poll=${poll} back=${back} lead=${html`<span class="id">${id}</span>`} />`;
  const payload = t.payload !== undefined ? JSON.stringify(t.payload, null, 2) : t.payload_base64;
  return html`<${View} title=${id} poll=${poll} back=${back} lead=${html`<span class="id">${id}</span> <${StatePill} task=${t} />`} beside=${html`<${Copy} text=${id} what="the id" /> <${Copy} text=${() => curlOf("GET", taskPath(id))} what="the call for the task as curl" label="As curl" /> <${Links} task=${t} may=${may} />`}
      actions=${actionsOf(t, may).map(action => html`<button key=${action.name} type="button" onClick=${() => setDoing({action, task: t})}>${action.label}</button>`)}>
    <div class="two">
      <${Section} title="Story"><${Story} task=${t} /></${Section}>
      <${Section} title="Facts"><dl class="facts">${facts(t, may).map(([what, value]) => html`<dt key=${what}>${what}</dt><dd>${value}</dd>`)}</dl></${Section}>
    </div>
    ${payload ? html`<${Section} title="Payload" side=${html`<${Copy} text=${payload} what="the payload" />`}><pre tabindex="0">${payload}</pre></${Section}>` : null}
    ${dialog}
  </${View}>`;
}

function facts(t, may) {
  return [
    ["Topic", html`<${TopicLink} name=${t.topic} may=${may} />`],
    ["Group", t.group && html`<a href=${link("tasks", "", {group: t.group})}>${t.group}</a>`],
    ["Node", html`<code>${t.node}</code>`],
    ["Attempts", count(t.attempt)],
    ["Goes to", t.delivers_to && html`<code>${t.delivers_to}</code>`],
    ["Its own delivery", t.delivery && html`<code>${JSON.stringify(t.delivery)}</code>`],
    ["Not later than", t.max_lateness && t.max_lateness + " after its deadline"],
    ["Revision", count(t.revision)],
    ["Stored", t.durability === "spooled" && "on the disk of this node alone, until Redis is back"],
    ...Object.entries(t.headers || {}).map(([name, value]) => ["Header " + name, value]),
  ].filter(([, value]) => value);
}

const reasons = {exhausted: "Died: its attempts were used up", buried: "Died: its receiver buried it", deleted: "Died: its topic was deleted"};

const outcomes = {
  failed: "failed", lease_expired: "was not settled within its lease",
  buried: "was its last: the receiver buried it", process_ended: "ended with its process", delivered: "delivered it",
};

const ends = {delivered: "Delivered", cancelled: "Cancelled by a caller", skipped: "Given up undelivered: it was too late"};

// attempts are those that have failed last, and the delivery; the server keeps a few of them.
function attempts(t) {
  const list = (t.attempts || []).map(a => ({at: a.at, bad: a.outcome !== "delivered", error: a.error, text: "Attempt " + count(a.attempt) + " " + (outcomes[a.outcome] || a.outcome),
    by: [a.duration && "after " + fine(a.duration), a.by && "by " + a.by].filter(Boolean).join(", ")}));
  const before = t.attempt - list.length - (t.state === "delivering" ? 1 : 0);
  if (before > 0) list.unshift({text: plural(before, "attempt") + " before that", error: list.length ? "" : t.last_error});
  return list;
}

// Story tells what has happened to the task and what will, in order.
function Story({task: t}) {
  const ahead = Date.parse(t.due_at) > now(), list = [{at: t.created_at, text: "Scheduled"}];
  const dead = t.headers?.["lapse-dead-id"];
  if (dead) list[0] = {at: t.created_at, text: html`Follows <a href=${link("tasks", dead)}>${dead}</a> of ${t.headers["lapse-dead-topic"]}, which has died`, error: t.headers["lapse-dead-error"]};
  if (t.state === "finished" ? !ahead : t.state === "held" ? t.due_at < t.held_at : t.due_at !== t.next_at || t.state !== "pending" || t.attempt > 0) list.push({at: t.due_at, text: ahead ? "Falls due" : "Fell due", ahead});
  list.push(...attempts(t));
  if (t.state === "delivering") list.push({text: "Attempt " + count(t.attempt) + " is under way"});
  else if (t.state === "ready" && t.undeliverable) list.push({at: t.next_at, text: "Ready, but cannot be delivered", error: t.undeliverable, bad: true});
  else if (t.state === "ready") list.push({at: t.next_at, text: "Ready: waits for its receiver", bad: now() - Date.parse(t.next_at) > 5000});
  else if (t.state === "held") list.push({at: t.held_at, text: "Held, with " + fine(t.remaining) + " left until attempt " + count(t.attempt + 1)},
    {text: "Waits until it is resumed", ahead: true});
  else if (t.state === "dead") list.push({at: t.died_at, text: reasons[t.reason] || "Died", bad: true});
  else if (t.state === "finished") list.push({at: t.finished_at, text: ends[t.outcome] || "Finished"});
  else list.push({at: t.next_at, text: "Attempt " + count(t.attempt + 1) + " begins", ahead: true});
  return html`<ol class="story">${list.map((s, i) => html`<li key=${i} class=${s.bad ? "bad" : s.ahead ? "ahead" : ""}>${s.text}
    ${s.at ? html` <time datetime=${s.at} title=${s.at}>${when(s.at)}, ${away(s.at)}</time>` : null}
    ${s.error ? html`<p class="bad">${s.error} <${Copy} text=${s.error} what="the error" /></p>` : null}${s.by ? html`<p class="soft">${s.by}</p>` : null}</li>`)}</ol>`;
}

// actionsOf lists what can be done with a task as it stands.
function actionsOf(t, may) {
  const list = [], add = (scope, ...actions) => { if (may(scope)) list.push(...actions); };
  if (t.state === "dead") add("admin", {name: "requeue", label: "Requeue"}, {name: "mend", label: "Mend and send again"}, {name: "delete", label: "Delete", danger: true});
  else if (t.state !== "delivering" && t.state !== "finished") add("schedule", {name: "fire", label: "Fire now"}, {name: "move", label: "Move"},
    t.state === "held" ? {name: "resume", label: "Resume"} : {name: "hold", label: "Hold"}, {name: "cancel", label: "Cancel", danger: true});
  return list;
}

const questions = {
  fire: {title: "Fire it now?", text: "It is due at once, and delivered as soon as its topic lets it.", done: "The task is due now."},
  hold: {title: "Hold the task?", text: "Its countdown stops, and it is not delivered until it is resumed.", done: "The task is held."},
  resume: {title: "Resume the task?", text: "Its countdown goes on with the time that it had left.", done: "The countdown goes on."},
  cancel: {title: "Cancel the task?", text: "It will not be delivered. This cannot be taken back.", done: "The task is cancelled."},
  delete: {title: "Delete the dead task?", text: "Its payload is lost with it. This cannot be taken back.", done: "The task is deleted."},
  requeue: {title: "Requeue the task?", text: "It comes back with all its attempts before it, and is due at once.", done: "The task is back."},
};

// requeue brings a dead task back. The server says how many came back, and 0 is no failure to it.
async function requeue(t, changed) {
  const {requeued} = await post(topicPath(t.topic) + "/dead/requeue", {ids: [t.id], ...changed});
  if (!requeued) throw new Problem(404, {title: "Nothing came back", detail: "The task is not dead any more: it was requeued or deleted meanwhile."});
}

// read returns what a text says in JSON, and what is wrong with it.
function read(text) {
  try { return {value: text.trim() ? parse(text) : null, wrong: ""}; } catch (fault) { return {value: null, wrong: "Must be JSON: " + fault.message}; }
}

const isTexts = value => value !== null && typeof value === "object" && !Array.isArray(value) && Object.values(value).every(v => typeof v === "string");

// Mend edits what a dead task carries, and sends it again in the same step. What stays as it was is
// not sent, so that no byte of it changes.
function Mend({task: t, onClose}) {
  const was = {payload: t.payload === undefined ? "" : JSON.stringify(t.payload, null, 2), headers: JSON.stringify(t.headers || {}, null, 2)};
  const [payload, setPayload] = useState(was.payload), [headers, setHeaders] = useState(was.headers);
  const p = read(payload), h = read(headers), wrongHeaders = h.wrong || (isTexts(h.value ?? {}) ? "" : "Must be an object of texts.");
  const changed = {...(payload !== was.payload ? {payload: p.value} : {}), ...(headers !== was.headers ? {headers: h.value ?? {}} : {})};
  return html`<${Ask} title="Mend the task and send it again?" label="Send it" done="The task is back." onClose=${onClose} disabled=${!!(p.wrong || wrongHeaders)} act=${() => requeue(t, changed)}>
    <p><code>${t.id}</code> of ${t.topic}. It keeps its id, has all its attempts before it, and is due at once.</p>
    ${t.payload_base64 ? html`<p class="hint">Its payload is not JSON. What is typed takes its place.</p>` : null}
    <${Field} label="Payload" name="payload" area=${true} value=${payload} onInput=${setPayload} error=${p.wrong} />
    <${Field} label="Headers" name="headers" area=${true} value=${headers} onInput=${setHeaders} error=${wrongHeaders} />
  </${Ask}>`;
}

// Doing asks before it does something. It is about the task as it was when the question came up:
// If-Match refuses the change of a task that another caller has changed meanwhile. Then the question
// is about the task as it is now.
function Doing({action, task, onClose}) {
  const [t, setT] = useState(task), [due, setDue] = useState(localInput(Date.parse(t.due_at))), headers = t.etag ? {"If-Match": t.etag} : {};
  const path = taskPath(t.id), of = {headers};
  const again = act => async () => {
    try {
      await act();
    } catch (fault) {
      if (fault.status === 412) {
        const {value, etag} = await call("GET", path);
        setT({...value, etag});
        throw new Problem(412, {title: "The task has changed meanwhile", detail: "It is " + value.state + " now" + (value.next_at ? ", its next attempt at " + when(value.next_at) : "") + ". Press again to go on all the same."});
      }
      throw fault;
    }
  };
  if (action.name === "mend") return html`<${Mend} task=${t} onClose=${onClose} />`;
  if (action.name === "move") {
    const by = ms => setDue(localInput(Date.parse(fromInput(due)) + ms));
    return html`<${Ask} title="Move the task" label="Move" done="The task has its new deadline." onClose=${onClose} disabled=${!due}
      act=${again(() => call("PATCH", path, {...of, body: {due_at: fromInput(due)}}))}>
      <p>Its deadline is ${when(t.due_at)}, ${away(t.due_at)}.</p>
      <${Field} label=${"New deadline, " + byClock()} name="due" type="datetime-local" step="1" value=${due} onInput=${setDue} required />
      <div class="actions"><button type="button" class="small" onClick=${() => by(3_600_000)}>1 hour later</button>
        <button type="button" class="small" onClick=${() => by(86_400_000)}>1 day later</button></div>
    </${Ask}>`;
  }
  const acts = {
    fire: () => call("POST", path + "/fire", of),
    hold: () => call("POST", path + "/hold", of),
    resume: () => call("POST", path + "/resume", of),
    cancel: () => call("DELETE", path, of),
    delete: () => call("DELETE", path, of),
    requeue: () => requeue(t),
  };
  const q = questions[action.name];
  return html`<${Ask} title=${q.title} label=${action.danger ? action.label + " the task" : action.label} keep=${action.danger ? "Keep" : undefined} danger=${action.danger} act=${again(acts[action.name])} done=${q.done} onClose=${onClose}>
    <p><code>${t.id}</code> of ${t.topic}. ${q.text}</p></${Ask}>`;
}
