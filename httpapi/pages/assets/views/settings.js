// The settings of a topic: in words, and as a form. The server checks them, and names each field that
// is wrong.

import {html, useState} from "../vendor/preact.js";
import {Problem, call, topicPath} from "../api.js";
import {count, plural} from "../format.js";
import {asLinks, asText} from "../links.js";
import {Ask, Field} from "../parts.js";
import {link} from "../route.js";

const none = "none";

const misfires = {deliver: "deliver what fell due meanwhile", skip: "skip what fell due meanwhile", coalesce: "deliver the latest of each group"};

export function settingsInWords(t) {
  const {kind, ...way} = t.delivery;
  return [
    ["Delivery", html`${kind}${Object.keys(way).length ? html` <code>${way.url || JSON.stringify(way)}</code>` : null}`],
    ["Retry", (t.retry.max_attempts >= 1_000_000 ? "any number of attempts" : plural(t.retry.max_attempts, "attempt"))
      + (t.retry.max_age ? ", for " + t.retry.max_age + " after the deadline" : "") + "; " + t.retry.min_backoff + " to " + t.retry.max_backoff + " apart"],
    ["Lease", t.lease],
    ["Concurrency", kind === "pull" ? "as many as receivers take"
      : count(t.concurrency) + (t.concurrency_set ? "" : ", raised during a backlog") + (t.concurrency_now !== t.concurrency ? "; now " + count(t.concurrency_now) : "")],
    ["Of one group", t.concurrency_per_group ? count(t.concurrency_per_group) + " at once on each node" + (t.counts.blocked ? "; now waiting for others of their groups: " + count(t.counts.blocked) : "") : "no bound"],
    ["Rate", t.rate ? t.rate.per_second + " a second on each node" + (t.rate.burst ? ", " + count(t.rate.burst) + " at once" : "") : "no bound"],
    ["Weight", count(t.weight)],
    ["Spread", t.spread === "0s" ? none : "over " + t.spread],
    ["After an outage", misfires[t.misfire] || t.misfire],
    ["Dead tasks", "kept for " + t.dead_retention],
    ["What dies", t.on_dead ? html`is followed by a task of <code>${t.on_dead.topic}</code>${t.on_dead.delay === "0s" ? "" : " after " + t.on_dead.delay}` : "is followed by nothing"],
    ["Finished tasks", t.keep_finished === "0s" ? "not kept" : html`kept for ${t.keep_finished}, <a href=${link("tasks", "", {topic: t.name, state: "finished"})}>${count(t.counts.finished)} now</a>`],
    ["Tasks", t.task_delivery ? "may have a delivery of their own" : "are all delivered alike"],
    ...(t.links ? [["Links", Object.keys(t.links).join(", ")]] : []),
    ["Crashes", t.count_crashes ? "count as attempts" : "do not count as attempts"],
  ];
}

// The fields of the form. Each has the name that the server gives it in errors[], and says how it is
// read from a topic. A value that is left empty gets its default.
const fields = [
  {name: "retry.max_attempts", label: "Attempts at most", number: true, of: t => (t.retry.max_attempts >= 1_000_000 ? "" : t.retry.max_attempts), hint: "Left out: no bound"},
  {name: "retry.max_age", label: "Retry for", of: t => t.retry.max_age || "", hint: "After the deadline, such as 24h"},
  {name: "retry.min_backoff", label: "Shortest backoff", of: t => t.retry.min_backoff},
  {name: "retry.max_backoff", label: "Longest backoff", of: t => t.retry.max_backoff},
  {name: "lease", label: "Lease", of: t => t.lease, hint: "How long a delivery may take"},
  {name: "concurrency", label: "Concurrency", number: true, of: t => (t.concurrency_set ? t.concurrency : ""), hint: "Left out: 64, raised during a backlog"},
  {name: "concurrency_per_group", label: "At once of one group", number: true, of: t => t.concurrency_per_group || "", hint: "On each node; left out: no bound"},
  {name: "rate.per_second", label: "Rate, a second", number: true, of: t => t.rate?.per_second ?? "", hint: "On each node; left out: no bound"},
  {name: "rate.burst", label: "Burst", number: true, of: t => t.rate?.burst ?? ""},
  {name: "weight", label: "Weight", number: true, of: t => t.weight},
  {name: "spread", label: "Spread", of: t => t.spread},
  {name: "misfire", label: "After an outage", of: t => t.misfire, options: ["deliver", "skip", "coalesce"]},
  {name: "dead_retention", label: "Keep dead tasks for", of: t => t.dead_retention},
  {name: "keep_finished", label: "Keep finished tasks for", of: t => t.keep_finished, hint: "0s: they are not kept"},
  {name: "on_dead.topic", label: "What dies is followed by a task of", of: t => t.on_dead?.topic ?? "", hint: "A topic; left out: nothing follows"},
  {name: "on_dead.delay", label: "So long after its death", of: t => t.on_dead?.delay ?? ""},
  {name: "task_delivery", label: "Tasks may have a delivery of their own", type: "checkbox", of: t => t.task_delivery},
  {name: "count_crashes", label: "Crashes count as attempts", type: "checkbox", of: t => t.count_crashes},
];

// kinds are the ways that every server has. Others are shown where the topic has one.
const kinds = ["pull", "webhook", "stream", "pubsub"];

const wayOf = t => {
  const {kind, ...way} = t.delivery;
  return Object.keys(way).length ? JSON.stringify(way, null, 2) : "";
};

// patchOf is the merge patch that makes the settings what the form says: what has not changed is left
// out, and null gives a field its default.
function patchOf(t, form) {
  const patch = {};
  for (const f of fields) {
    const was = f.of(t), value = form[f.name];
    if (value === was || String(value) === String(was)) continue;
    const given = value === "" ? null : f.number ? (Number.isNaN(Number(value)) ? value : Number(value)) : value;
    const [outer, inner] = f.name.split(".");
    if (inner) (patch[outer] ??= {})[inner] = given;
    else patch[outer] = given;
  }
  if (patch.rate && form["rate.per_second"] === "") patch.rate = null;
  if (patch.on_dead && form["on_dead.topic"] === "") patch.on_dead = null;
  if (form.links !== asText(t.links)) {
    const links = asLinks(form.links), gone = Object.keys(t.links ?? {}).filter(name => !(name in links));
    patch.links = {...links, ...Object.fromEntries(gone.map(name => [name, null]))};
  }
  if (form.kind !== t.delivery.kind || form.way !== wayOf(t)) {
    const {kind, ...was} = t.delivery, way = form.way.trim() ? JSON.parse(form.way) : {};
    patch.delivery = {...Object.fromEntries(Object.keys(was).map(key => [key, null])), ...way, kind: form.kind};
  }
  return patch;
}

export function Settings({topic, onClose, saved}) {
  // The topic as it was when the form was opened. If-Match keeps changes by others: these are shown
  // first, beside what the user has changed.
  const [t, setT] = useState(topic);
  const [form, set] = useState(() => ({kind: t.delivery.kind, way: wayOf(t), links: asText(t.links), ...Object.fromEntries(fields.map(f => [f.name, f.of(t)]))}));
  const [errors, setErrors] = useState({});
  const change = name => value => set(f => ({...f, [name]: value}));
  const takeOver = async () => {
    const {value, etag} = await call("GET", topicPath(t.name)), newest = {...value, etag};
    const changed = fields.filter(f => String(f.of(newest)) !== String(f.of(t)));
    // What the user has not touched becomes what it is now.
    set(form => ({...form, ...Object.fromEntries(changed.filter(f => String(form[f.name]) === String(f.of(t))).map(f => [f.name, f.of(newest)])),
      kind: form.kind === t.delivery.kind ? newest.delivery.kind : form.kind, way: form.way === wayOf(t) ? wayOf(newest) : form.way, links: form.links === asText(t.links) ? asText(newest.links) : form.links}));
    setT(newest);
    throw new Problem(412, {title: "The settings have changed meanwhile", detail: (changed.length ? changed.map(f => f.label + ": " + (f.of(newest) === "" ? "default" : f.of(newest))).join("; ") : "Its delivery, or whether it is paused")
      + ". What you have changed is kept: press Save again to save it."});
  };
  const save = async () => {
    let patch;
    try {
      patch = patchOf(t, form);
    } catch {
      setErrors({delivery: "must be a JSON object"});
      throw new Error("The fields of the delivery are no JSON.");
    }
    if (!Object.keys(patch).length) return;
    try {
      await call("PATCH", topicPath(t.name), {body: patch, headers: {"Content-Type": "application/merge-patch+json", "If-Match": t.etag}});
    } catch (fault) {
      if (fault.status === 412) await takeOver();
      setErrors(Object.fromEntries((fault.errors || []).map(e => [e.field, e.problem])));
      throw fault;
    }
    saved();
  };
  const ofLinks = Object.entries(errors).filter(([field]) => field.startsWith("links")).map(([field, text]) => field + " " + text).join("; ");
  const ofWay = Object.entries(errors).filter(([field]) => field.startsWith("delivery")).map(([field, text]) => field + " " + text).join("; ");
  const options = kinds.includes(t.delivery.kind) ? kinds : [t.delivery.kind, ...kinds];
  return html`<${Ask} title=${"Settings of " + t.name} label="Save" act=${save} done="The settings are saved." onClose=${onClose}
    inFields=${list => list.every(e => /^(delivery|links)/.test(e.field) || fields.some(f => f.name === e.field))}>
    <div class="fields">
      <${Field} label="Delivery" name="kind" value=${form.kind} onInput=${change("kind")} options=${options} />
      ${fields.map(({name, label, type, options, hint, number}) => html`<${Field} key=${name} ...${{name, label, type, options, hint}}
        value=${form[name]} onInput=${change(name)} error=${errors[name]} inputmode=${number ? "decimal" : undefined} />`)}
    </div>
    <${Field} label="Fields of the delivery, as JSON" name="way" area value=${form.way} onInput=${change("way")} error=${ofWay}
      hint=${form.kind === "webhook" ? 'Such as {"url": "https://shop.example/hooks", "timeout": "10s"}' : form.kind === "pull" ? "Pull has none" : undefined} />
    <${Field} label="Links of each task: a name and an address a line" name="links" area value=${form.links} onInput=${change("links")} error=${ofLinks}
      hint="Such as logs https://logs.example/?q={id}; also {topic} and {group}" />
  </${Ask}>`;
}
