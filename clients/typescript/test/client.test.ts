import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { type Actions, Client, LapseError, type NewTask, type Reserve, type Task, type Move, type TopicSettings, newId } from "../src/index.js";
import { Server, token } from "./server.js";

let server: Server;
let client: Client;
before(async () => {
  server = await Server.start();
  client = new Client(server.url);
});
after(() => server.stop());

async function collect<T>(all: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const one of all) list.push(one);
  return list;
}

const failure = (code: string) => (e: unknown) => e instanceof LapseError && e.code === code;

test("a task from its request to its end", async () => {
  const made = await client.schedule({ id: "order-42", topic: "order.unpaid", delay: "30m", payload: { order: 42 }, headers: { tenant: "eu" }, group: "c-7" });
  assert.equal(made.created, true);
  assert.equal(made.state, "pending");
  assert.equal((await client.schedule({ id: "order-42", topic: "order.unpaid", delay: "30m", payload: { order: 42 }, headers: { tenant: "eu" }, group: "c-7" })).created, false);
  await assert.rejects(client.schedule({ id: "order-42", topic: "order.unpaid", delay: "31m" }), failure("id_taken"));
  const at = new Date(Date.now() + 3_600_000);
  assert.equal((await client.reschedule("order-42", { due_at: at })).due_at, at.toISOString());
  assert.equal((await client.reschedule("order-42", { payload: [1] })).revision, 3);
  assert.ok(Date.parse((await client.reschedule("order-42", "1d")).due_at) > at.getTime());
  const held = await client.hold("order-42");
  assert.equal(held.state, "held");
  assert.equal((await client.resume("order-42")).state, "pending");
  assert.equal((await client.replace({ id: "order-42", topic: "order.unpaid", due_at: at, group: "c-7" })).created, false);
  assert.equal((await client.fire("order-42")).id, "order-42");
  assert.equal((await client.get("order-42")).state, "ready");
  await client.cancel("order-42");
  await assert.rejects(client.get("order-42"), (e) => {
    assert.ok(e instanceof LapseError);
    assert.deepEqual([e.type, e.code, e.status, e.retryable, e.outcomeUnknown], ["/problems/not_found", "not_found", 404, false, false]);
    assert.ok(e.requestId);
    return true;
  });
});

test("a task with a delivery of its own", async () => {
  await client.setTopic("own", { task_delivery: true, concurrency_per_group: 1, on_dead: { topic: "own-dead", delay: "1h" } });
  const made = await client.schedule({ id: "own-1", topic: "own", delay: "1h", delivery: { retry: { max_attempts: 5, max_age: "2h" } } });
  assert.deepEqual(made.delivery, { retry: { max_attempts: 5, max_age: "2h" } });
  assert.equal((await client.reschedule("own-1", { delivery: {} })).delivery, undefined);
  await assert.rejects(client.schedule({ topic: "own", delivery: { url: "https://shop.example" } }), failure("invalid"));
});

test("a wrong request names its fields", async () => {
  await assert.rejects(client.schedule({ topic: "t", delay: "soon" }), (e) => e instanceof LapseError && e.status === 422 && e.errors[0]?.field === "delay" && e.message.includes("delay"));
  await assert.rejects(client.get(""), TypeError);
  await assert.rejects(client.list({ topic: "t", group: "" }), { name: "TypeError", message: "group must not be empty; undefined leaves it out" });
  assert.throws(() => new Client({ url: "ftp://x" }), TypeError);
  assert.throws(() => new Client({ url: server.url, retries: -1 }), RangeError);
});

test("batches, lists and groups", async () => {
  const answer = await client.scheduleBatch([
    { topic: "b", delay: "1h", group: "g" },
    { id: "b-2", topic: "b", delay: "2h", group: "g" },
    { topic: "b", delay: -1 },
  ]);
  assert.equal(answer.accepted, 2);
  assert.match(answer.ids[0]!, /^[0-9a-f]{8}-[0-9a-f]{4}-7/);
  assert.equal(answer.errors[0]?.problem.status, 422);
  const ids = (list: Task[]): string[] => list.map((t) => t.id);
  assert.deepEqual(ids(await collect(client.all({ topic: "b", limit: 1 }))), [answer.ids[0], "b-2"]);
  assert.deepEqual(ids(await collect(client.group("g", { limit: 1 }))), [answer.ids[0], "b-2"]);
  const page = await client.list({ topic: "b", limit: 1, details: false });
  assert.ok(page.next_cursor);
  assert.deepEqual(await client.cancelGroup("g"), { cancelled: 2, delivering: [] });
});

test("topics", async () => {
  const set = await client.setTopic("set", { lease: "1m", retry: { max_attempts: 3 } });
  assert.deepEqual([set.lease, set.retry.max_attempts], ["1m", 3]);
  await assert.rejects(client.changeTopic("set", { lease: "2m" }, { revision: set.revision + 7 }), failure("precondition_failed"));
  const changed = await client.changeTopic("set", { lease: "2m", retry: null }, { revision: set.revision });
  assert.deepEqual([changed.lease, changed.retry.max_attempts], ["2m", 1_000_000]);
  await client.pauseTopic("set");
  assert.equal((await client.topic("set")).paused, true);
  await client.resumeTopic("set");
  await client.schedule({ topic: "set", delay: "1h" });
  assert.equal((await collect(client.topics({ limit: 1 }))).some((t) => t.name === "set"), true);
  await assert.rejects(client.deleteTopic("set"), failure("topic_in_use"));
  assert.deepEqual(await client.purge("set"), { cancelled: 1, delivering: 0 });
  assert.deepEqual((await client.listTopics({ search: "SET" })).topics.map((t) => t.name), ["set"]);
  await client.deleteTopic("set");
  await assert.rejects(client.topic("set"), failure("topic_not_found"));
  await client.schedule({ id: "killed", topic: "set", delay: "1h" });
  await client.killTopic("set");
  assert.deepEqual((await client.listDead("set")).tasks.map((t) => [t.id, t.reason]), [["killed", "deleted"]]);
  assert.equal((await client.deadReasons({ topic: "set" })).dead, 1);
  assert.ok((await client.deadReasons({ reason: "deleted" })).dead >= 1);
  await client.deleteDead("set", ["killed"]);
});

test("a redrive stops by itself", async () => {
  const filter = { topic: "redriven" };
  await client.scheduleBatch([1, 2, 3].map((i) => ({ id: `r-${i}`, topic: "redriven" })));
  for (const d of await client.reserve("redriven", { max: 3, wait: "10s" })) await client.bury(d.receipt, { reason: "no such order" });
  assert.deepEqual(await collect(client.redrive({ filter, first: 2, within: "300ms" })), [
    { topic: "redriven", requeued: 2, over: false },
    { topic: "redriven", requeued: 2, over: false, stopped: "none of the first 2 was delivered within 300 ms" },
  ]);
  assert.deepEqual(await collect(client.redrive({ filter, first: 0 })), [{ topic: "redriven", requeued: 1, over: true }]);
  for (const d of await client.reserve("redriven", { max: 3, wait: "10s" })) await client.bury(d.receipt, { reason: "no such order" });
  const seen: string[] = [];
  for await (const t of client.redrive({ filter, first: 3 })) {
    seen.push(t.stopped ?? "");
    if (seen.length > 1) continue;
    for (const d of await client.reserve("redriven", { max: 3, wait: "10s" })) await client.bury(d.receipt, { reason: "still none" });
  }
  assert.deepEqual(seen, ["", "the first 3 failed again: still none"]);
  await assert.rejects(collect(client.redrive({ rate: 0 })), RangeError);
});

test("an act is undone", async () => {
  await client.setTopic("undone", { lease: "1m" });
  await client.pauseTopic("undone");
  const act = (await client.audit({ topic: "undone" })).entries.find((e) => e.verb === "pause")!;
  assert.deepEqual(await client.undo(act.id), { id: act.id, verb: "resume", topic: "undone" });
  assert.equal((await client.topic("undone")).paused, false);
  await assert.rejects(client.undo(act.id), failure("precondition_failed"));
  await assert.rejects(client.undo("none"), failure("act_not_found"));
});

test("receipts, the dead and actions", async () => {
  await client.scheduleBatch(["p-1", "p-2", "p-3"].map((id) => ({ id, topic: "pull" })));
  const got = await client.reserve("pull", { max: 3, wait: "10s", lease: "1m" });
  assert.deepEqual(got.map((d) => [d.id, d.attempt]), [["p-1", 1], ["p-2", 1], ["p-3", 1]]);
  const extended = await client.extend(got[0]!.receipt, { lease: "5m" });
  assert.ok(Date.parse(extended.lease_until!) > Date.parse(got[0]!.lease_until));
  assert.equal((await client.ack(got[0]!.receipt)).settled, 1);
  assert.equal((await client.ack([got[0]!.receipt + "x"])).errors[0]?.problem.type, "/problems/bad_receipt");
  await client.release(got[1]!.receipt, { delay: "1h", reason: "later" });
  assert.equal((await client.get("p-2")).last_error, "later");
  await client.bury(got[2]!.receipt, { reason: "no such order" });
  const dead = await collect(client.allDead("pull"));
  assert.deepEqual(dead.map((t) => [t.id, t.reason, t.last_error]), [["p-3", "buried", "no such order"]]);
  assert.deepEqual(await client.requeueDead("pull", { ids: ["p-3", "none"], delay: "1h" }), { requeued: 1, unknown: ["none"] });
  await client.deleteAllDead("pull");
  assert.equal((await client.act({ action: "cancel", filter: { topic: "pull" }, dry_run: true })).matched, 2);
  let done = 0;
  for await (const answer of client.actAll({ action: "move", shift: "1h", filter: { topic: "pull" } })) done += answer.done;
  assert.equal(done, 2);
  await client.purge("pull");
});

test("figures", async () => {
  assert.equal((await client.ready()).ready, true);
  assert.equal((await client.alive()).status, "alive");
  const nodes = await client.nodes();
  assert.equal(nodes.length, 1);
  assert.equal((await client.node(nodes[0]!.name)).self, true);
  await client.schedule({ id: "sought-1", topic: "sought", delay: "1h" });
  assert.deepEqual((await collect(client.searches({ q: "sought-" }))).flatMap((part) => part.tasks.map((t) => t.task.id)), ["sought-1"]);
  await assert.rejects(client.drainNode(nodes[0]!.name), failure("nobody_to_take_over"));
  assert.equal((await client.stats({ topics: false })).node, nodes[0]!.name);
  assert.equal((await client.diagnosis()).fleet, "One node, and it is live.");
  assert.equal((await client.history({ minutes: 1, scope: "node" })).step, "1m");
  assert.equal((await client.forecast({ window: "1h", step: "30m" })).counts.length, 2);
});

test("events, until the signal ends", async () => {
  const stop = new AbortController();
  const events = await client.events({ topic: ["seen"] }, { signal: stop.signal });
  await client.schedule({ id: "e-1", topic: "seen" });
  await client.schedule({ id: "e-1b", topic: "unseen" });
  const [delivery] = await client.reserve("seen", { wait: "10s" });
  await client.ack(delivery!.receipt);
  const kinds: string[] = [];
  await assert.rejects(async () => {
    for await (const event of events) {
      if (!("id" in event)) continue; // of a node
      assert.equal(event.id, "e-1");
      kinds.push(event.kind);
      if (event.kind === "delivered") stop.abort(new Error("enough"));
    }
  }, /enough/);
  assert.deepEqual(kinds, ["scheduled", "started", "delivered"]);
  for await (const _ of await client.events({ topic: ["seen"] }).then(async (all) => (await client.schedule({ topic: "seen" }), all))) break; // leaving the loop ends the stream
});

test("a list is left early, and many calls share a signal", async () => {
  await client.scheduleBatch(Array.from({ length: 50 }, (_, i) => ({ id: `m-${i}`, topic: "many", delay: "1h" })));
  for await (const task of client.all({ topic: "many", limit: 10 })) {
    assert.ok(task.id);
    break;
  }
  const { signal } = new AbortController();
  const warned: unknown[] = [];
  process.on("warning", (w) => warned.push(w));
  await Promise.all(Array.from({ length: 50 }, (_, i) => client.get(`m-${i}`, { signal })));
  await new Promise(setImmediate);
  assert.deepEqual(warned, []);
});

test("a token", async () => {
  const guarded = await Server.guarded();
  try {
    assert.equal((await new Client({ url: guarded.url, token }).schedule({ topic: "t" })).topic, "t");
    await assert.rejects(new Client({ url: guarded.url, token: "lapse_none" }).schedule({ topic: "t" }), failure("unauthorized"));
    await assert.rejects(new Client({ url: guarded.url, token }).nodes(), failure("forbidden"));
  } finally {
    await guarded.stop();
  }
});

test("what the server does not require, the types do not either", () => {
  const task: NewTask = { topic: "t" };
  const change: Move = {};
  const settings: TopicSettings = { delivery: {}, retry: {}, rate: { per_second: 1 } };
  const reserve: Reserve = {};
  const actions: Actions = { action: "fire" };
  assert.equal([task, change, settings, reserve, actions].length, 5);
});

test("ids sort by time", () => {
  const ids = Array.from({ length: 100 }, newId);
  assert.equal(new Set(ids).size, 100);
  assert.match(ids[0]!, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.ok(ids[0]!.slice(0, 13) <= ids[99]!.slice(0, 13));
  assert.ok(Math.abs(parseInt(ids[0]!.replaceAll("-", "").slice(0, 12), 16) - Date.now()) < 60_000);
});

test("what cannot be sent is an error of the caller, and nothing is sent", async () => {
  const circular: Record<string, unknown> = {};
  circular["self"] = circular;
  for (const payload of [1n, circular]) await assert.rejects(client.schedule({ topic: "unsent", payload }), TypeError);
  for (const timeout of [Infinity, Number.NaN, 0]) await assert.rejects(client.schedule({ topic: "unsent" }, { timeout }), /timeout must be from 1 to 3600000/);
  for await (const t of client.all({ topic: "unsent" })) assert.fail(`${t.id} was sent`);
});
