"use strict";
const count = new Intl.NumberFormat();
const byId = id => document.getElementById(id);

function cell(row, text, numeric) {
  const td = row.insertCell();
  if (numeric) td.className = "num";
  td.textContent = numeric === "count" ? count.format(text) : text;
  return td;
}

// The server's clock when it last answered. That of the browser may be wrong.
let now = Date.now();

// age is how long ago an instant is, in its two greatest units: 3d4h, 5m10s, 12s.
function age(instant) {
  let left = Math.max(0, Math.floor((now - Date.parse(instant)) / 1000));
  const parts = [];
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const n = Math.floor(left / length);
    left -= n * length;
    if (n > 0 && parts.length < 2) parts.push(n + unit);
  }
  return parts.join("") || "0s";
}

// showReach says which nodes the cards and the topics are about, and which are missing.
function showReach(r) {
  const missing = r.missing.map(m => (m.node + " (" + m.error + ")").trim()).join(", "), el = byId("reach");
  const text = missing ? "Counts of the fleet without " + missing + "."
    : r.covers.length > 1 ? "Counts of the fleet: " + count.format(r.covers.length) + " nodes." : "";
  if (el.textContent !== text) el.textContent = text;
  el.className = missing ? "bad" : "soft";
}

function show(stats) {
  showReach(stats);
  byId("node").textContent = stats.node;
  byId("version").textContent = stats.version;
  byId("uptime").textContent = stats.uptime;
  byId("late").textContent = stats.total.recent.p99;
  for (const el of document.querySelectorAll("[data-total]"))
    el.textContent = count.format(stats.total[el.dataset.total]);
  byId("topics").replaceChildren(...stats.topics.map(t => {
    const row = document.createElement("tr"), c = t.counts;
    const name = document.createElement("code");
    name.textContent = t.name;
    cell(row, "").append(name);
    cell(row, t.delivery.kind + (t.paused ? ", paused" : ""));
    for (const n of [c.pending, c.retrying, c.ready, c.delivering, c.dead, c.delivered, c.failed]) cell(row, n, "count");
    const failed = row.lastElementChild;
    if (t.last_error) failed.title = new Date(t.last_failed_at).toLocaleString() + ": " + t.last_error;
    cell(row, c.ready_oldest_at ? age(c.ready_oldest_at) : "-", "text");
    cell(row, c.recent.p99, "text");
    cell(row, c.lateness.p99, "text");
    return row;
  }));
  if (stats.topics.length === 0) {
    const td = cell(byId("topics").insertRow(), stats.topics_left_out > 0
      ? count.format(stats.topics_left_out) + " topics are too many to show here: GET /v1/topics lists them."
      : "No topic yet. Schedule a task, and its topic appears here.");
    td.colSpan = 12;
    td.className = "soft";
  }
  const s = stats.state;
  if (s.shutting_down) tell("Shutting down.", true);
  else if (s.draining) tell("Draining: what this node holds is handed over to others.", true);
  else if (s.unsure) tell("Cut off from the ledger: others may have adopted what this node holds.", true);
  else if (!s.replay.over) tell("Replaying: " + count.format(s.replay.records) + " records read.", false);
  else if (!s.ledger.ok) tell("The ledger does not answer as it should" + (s.ledger.condition ? ": " + s.ledger.condition : "") + ". Deliveries go on.", true);
  else tell("", false);
}

// Where there is one node alone, the figures above say it all.
function showNodes(nodes) {
  byId("fleet").hidden = nodes.length < 2;
  byId("nodes").replaceChildren(...nodes.map(n => {
    const row = document.createElement("tr"), name = document.createElement("code");
    name.textContent = n.name;
    cell(row, "").append(name, n.self ? " (this one)" : "");
    cell(row, n.state).className = n.state === "silent" ? "bad" : "";
    cell(row, n.heartbeat_age + " ago", "text");
    cell(row, n.shards.held + " of " + n.shards.own, "text");
    cell(row, n.shards.adopted, "count");
    for (const key of ["pending", "ready", "delivering", "dead"])
      if (n.status) cell(row, n.status[key], "count"); else cell(row, "-", "text");
    cell(row, n.status ? n.status.lateness.p99 : "-", "text");
    return row;
  }));
}

async function ask(path) {
  const answer = await fetch(path, {headers: {Accept: "application/json"}});
  if (!answer.ok) throw new Error(answer.status);
  now = Date.parse(answer.headers.get("Date")) || Date.now();
  return answer.json();
}

function tell(text, bad) {
  const el = byId("state");
  if (el.textContent !== text) el.textContent = text;
  el.className = bad ? "bad" : "soft";
}

async function poll() {
  if (!document.hidden) {
    try {
      show(await ask("/v1/stats"));
      await ask("/v1/nodes").then(answer => showNodes(answer.nodes), () => showNodes([]));
    } catch {
      tell("The server does not answer. The figures are old.", true);
    }
  }
  setTimeout(poll, 2000);
}
poll();
