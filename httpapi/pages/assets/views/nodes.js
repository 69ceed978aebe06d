// The fleet: which node holds what, and which is away.

import {html, useState} from "../vendor/preact.js";
import {get, nodePath, post} from "../api.js";
import {ago, count, fine, millis, plural, short, span} from "../format.js";
import {Ask, Figures, Pill, Section, settled, Table, View} from "../parts.js";
import {usePoll} from "../poll.js";
import {quiet} from "./overview.js";

const dash = html`<span class="zero">–</span>`;
const ofStatus = key => n => (n.status ? quiet(n.status[key]) : dash);

// State says how a node is, in a word or two.
function State({node: n}) {
  if (n.state === "silent") return html`<${Pill} bad>silent</${Pill}>`;
  if (n.state === "unknown") return html`<${Pill} bad>not known</${Pill}>`;
  if (n.state === "draining") return html`<${Pill} warn>draining</${Pill}> <${Drained} node=${n} />`;
  if (n.state === "released") return html`<${Pill}>stopped</${Pill}>`;
  if (n.status?.unsure) return html`<${Pill} bad>cut off</${Pill}>`;
  if (n.status?.catching_up) return html`<${Pill} warn>reading its tasks</${Pill}>`;
  if (n.status?.backlog) return html`<${Pill} bad>backlog</${Pill}>`;
  return html`<${Pill}>live</${Pill}>`;
}

// Drained shows how much of its own shards a node that drains has handed over.
function Drained({node: n}) {
  const all = n.shards.own + n.shards.adopted, left = n.shards.held + n.shards.adopted;
  return html`<span class="soft"><progress max=${all || 1} value=${all - left} aria-label=${"Handed over by " + n.name}></progress> ${all - left} of ${all} shards handed over</span>`;
}

// note says what a reader must know of a node beside its state.
function note(n) {
  const list = [];
  if (n.state === "silent") {
    const held = n.shards.held > 0 ? "It still owns " + plural(n.shards.held, "shard") + ": their tasks wait." : "Others hold its tasks.";
    list.push("no heartbeat for " + span(millis(n.heartbeat_age)) + ". " + held);
  }
  if (n.state === "unknown") list.push("nothing is known of it since " + span(millis(n.heartbeat_age)) + ": the ledger does not answer");
  if (n.shards.adopted > 0) list.push("holds " + plural(n.shards.adopted, "shard") + " of other nodes");
  const away = n.shards.own - n.shards.held;
  if (n.state !== "silent" && n.state !== "released" && away > 0) list.push(plural(away, "shard") + " of its own " + (away === 1 ? "is" : "are") + " with others");
  if (n.status?.drain_fault) list.push("gave up its drain: " + n.status.drain_fault);
  return list.join("; ");
}

export const nodeColumns = [
  {head: "Node", cell: n => html`<span class="id">${n.name}</span>${n.self ? html` <span class="soft">asked</span>` : null}
    ${n.version ? html`<div class="note">${n.version}</div>` : null}`},
  {head: "State", class: "grow", cell: n => html`<${State} node=${n} /> ${note(n)}`},
  {head: "Heartbeat", num: true, cell: n => (n.self ? dash : ago(millis(n.heartbeat_age))), more: true},
  {head: "Shards", num: true, cell: n => html`${n.shards.held} of ${n.shards.own}`, note: "Of its own, how many it holds"},
  {head: "Adopted", num: true, cell: n => quiet(n.shards.adopted), note: "Shards of other nodes that it holds"},
  {head: "Pending", num: true, cell: ofStatus("pending")},
  {head: "Ready", num: true, cell: ofStatus("ready")},
  {head: "Delivering", class: "spare", num: true, cell: ofStatus("delivering")},
  {head: "Dead", num: true, cell: ofStatus("dead"), more: true},
  {head: "Room", class: "spare", num: true, cell: n => (n.status ? short(n.status.room) : dash), note: "How many more tasks its memory takes", more: true},
  {head: "p99 since start", class: "spare", num: true, cell: n => (n.status ? fine(n.status.lateness.p99) : dash), note: "How late first attempts began, since the node started", more: true},
];

// port are the figures of the asked node's port for clients of Redis.
function port(p) {
  const dropped = p.events_unsent + p.events_lost;
  return [
    {name: "connections", label: "Connections", value: count(p.connections), bad: !p.serving, note: p.serving ? p.address : "it accepts none: " + (p.fault || "it is closed")},
    {name: "subscribers", label: "Subscribers", value: count(p.subscribers)},
    {name: "cut", label: "Subscribers cut off", value: count(p.subscribers_cut), bad: p.subscribers_cut > 0, note: "since the start, because they did not read"},
    {name: "dropped", label: "Events dropped", value: count(dropped), bad: dropped > 0, note: count(p.events_unsent) + " unsent to other nodes, " + count(p.events_lost) + " lost"},
  ];
}

export function Nodes({may, stats, diagnosis}) {
  const poll = usePoll(signal => get("v1/nodes", undefined, signal), []);
  const [draining, setDraining] = useState(null), nodes = poll.data?.nodes;
  const actions = {head: html`<span class="unseen">Actions</span>`, class: "num", cell: n => (n.state === "live" && nodes.filter(o => o.state === "live").length > 1
    ? html`<button type="button" class="small" onClick=${() => setDraining(n)} aria-label=${"Drain " + n.name}>Drain</button>` : null)};
  return html`<${View} title="Nodes" lead=${diagnosis.data?.fleet} leadPoll=${diagnosis} poll=${poll} part=${nodes?.some(n => n.state === "unknown") ? "Not of all nodes" : ""}>
    ${nodes && settled(diagnosis) ? html`<${Table} label="Nodes" columns=${may("admin") && nodes.length > 1 ? [...nodeColumns, actions] : nodeColumns}
      rows=${nodes} keyOf=${n => n.name} empty="No node has told of itself." />` : null}
    ${stats.data?.state.redis ? html`<${Section} id="redis" title=${"Redis clients of " + stats.data.node} poll=${stats}>
      <${Figures} label="Port for clients of Redis" list=${port(stats.data.state.redis)} /></${Section}>` : null}
    ${draining ? html`<${Ask} title=${"Drain " + draining.name + "?"} label="Drain" danger done=${draining.name + " drains."}
      onClose=${() => { setDraining(null); poll.again(); }} act=${() => post(nodePath(draining.name) + "/drain")}>
      <p>It hands its ${plural(draining.shards.held + draining.shards.adopted, "shard")} over to the other nodes, takes no new tasks,
        and its process ends then. No task is lost.</p></${Ask}>` : null}
  </${View}>`;
}
