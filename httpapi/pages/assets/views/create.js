// A task is made on the page: the form, and the first steps of a server that has none yet.

import {html, useState} from "../vendor/preact.js";
import {Problem, now, post} from "../api.js";
import {Copy, curlOf} from "../copy.js";
import {byClock, fromInput, localInput} from "../format.js";
import {Ask, Field, Section} from "../parts.js";
import {go, link} from "../route.js";

const named = ["topic", "id", "group", "delay", "due_at", "payload"];

// requestOf is what the form asks for. It throws where the payload is no JSON.
function requestOf(form) {
  const body = {topic: form.topic.trim()};
  for (const name of ["id", "group"]) if (form[name].trim()) body[name] = form[name].trim();
  if (form.how === "at") body.due_at = fromInput(form.at);
  else if (form.delay.trim()) body.delay = form.delay.trim();
  if (form.payload.trim()) body.payload = JSON.parse(form.payload);
  return body;
}

// Create asks for a new task, and leads to it.
export function Create({topic = "", onClose}) {
  const [form, set] = useState(() => ({topic, id: "", group: "", how: "in", delay: "30m", at: localInput(now() + 1_800_000), payload: ""})), [errors, setErrors] = useState({});
  const change = name => value => set(f => ({...f, [name]: value}));
  const field = (name, label, more) => html`<${Field} ...${{name, label, error: errors[name === "at" ? "due_at" : name], ...more}} value=${form[name]} onInput=${change(name)} />`;
  const act = async () => {
    setErrors({});
    let body;
    try {
      body = requestOf(form);
    } catch (fault) {
      const problem = "must be JSON: " + fault.message;
      setErrors({payload: problem});
      throw new Problem(400, {title: "Not sent", errors: [{field: "payload", problem}]});
    }
    try {
      const made = await post("v1/tasks", body);
      go(link("tasks", made.id));
    } catch (fault) {
      setErrors(Object.fromEntries((fault.errors || []).map(e => [e.field, e.problem])));
      throw fault;
    }
  };
  const curl = () => {
    try { return curlOf("POST", "v1/tasks", requestOf(form)); } catch { return curlOf("POST", "v1/tasks", requestOf({...form, payload: ""})); }
  };
  return html`<${Ask} title="New task" label="Schedule" act=${act} done="The task is scheduled." onClose=${onClose} inFields=${list => list.every(e => named.includes(e.field))}>
    <div class="fields">
      ${field("topic", "Topic", {required: true})}
      ${field("how", "Due", {options: [{value: "in", text: "so long from now"}, {value: "at", text: "at a time"}]})}
      ${form.how === "at" ? field("at", "When, " + byClock(), {type: "datetime-local", step: "1", required: true})
        : field("delay", "Delay", {hint: "Such as 30s, 12h, 7d; left out: at once"})}
      ${field("id", "Id", {hint: "Left out: the server chooses one"})}
      ${field("group", "Group", {hint: "May be left out"})}
    </div>
    ${field("payload", "Payload, as JSON", {area: true, hint: "May be left out"})}
    <p><${Copy} text=${curl} what="this call as curl" label="Copy as curl" /></p>
  </${Ask}>`;
}

// FirstSteps are for a server that has met no task yet.
export function FirstSteps({may}) {
  const [creating, setCreating] = useState(false);
  const make = curlOf("POST", "v1/tasks", {topic: "hello", delay: "10s", payload: {text: "world"}}), take = curlOf("POST", "v1/topics/hello/reserve", {wait: "20s"});
  const step = (text, curl, what) => html`<li>${text} <div class="command"><pre tabindex="0">${curl}</pre><${Copy} text=${curl} what=${what} /></div></li>`;
  return html`<${Section} id="first-steps" title="First steps" side=${html`<a href="./docs">All of the API</a>`}>
    <ol class="steps">
      ${step("Schedule a task that is due in ten seconds:", make, "the call that schedules a task")}
      ${step("Receive it when it is due:", take, "the call that receives a task")}
      <li>Acknowledge it with the receipt of the answer, or let its lease run out: it comes again.</li>
    </ol>
    ${may("schedule") ? html`<p><button type="button" onClick=${() => setCreating(true)}>New task</button></p>` : null}
    ${creating ? html`<${Create} topic="hello" onClose=${() => setCreating(false)} />` : null}
  </${Section}>`;
}
