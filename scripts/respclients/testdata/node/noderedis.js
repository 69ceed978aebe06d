// What a program does with node-redis: noderedis.js HOST PORT PASSWORD MODULE [2|3].
import assert from "node:assert/strict";
import { createInterface } from "node:readline/promises";
import { setTimeout as sleep } from "node:timers/promises";

const [host, port, password, module, version] = process.argv.slice(2);
const { createClient } = await import(module);
const options = { password, name: "tour", socket: { host, port: Number(port), reconnectStrategy: () => 50 } };
if (version) options.RESP = Number(version);
const make = async (more) => await createClient({ ...options, ...more }).on("error", () => {}).connect();
const ok = (step) => console.log("ok", step);

// within calls f until it returns something true.
async function within(seconds, f) {
  for (const end = Date.now() + seconds * 1000; ; await sleep(10)) {
    const found = await f();
    if (found) return found;
    if (Date.now() > end) throw new Error(`still waiting after ${seconds} s`);
  }
}

const r = await make();
const events = await make();

async function connection() {
  assert.equal(await r.ping(), "PONG");
  assert.equal(await r.clientGetName(), "tour");
  assert.ok((await r.clientId()) > 0);
  assert.match(await r.info(), /redis_version:/);
  assert.equal(await r.echo("hello"), "hello");
  assert.ok((await r.commandCount()) > 50);
  const stranger = createClient({ ...options, password: "wrong", socket: { host, port: Number(port), reconnectStrategy: false } });
  await assert.rejects(stranger.on("error", () => {}).connect(), /WRONGPASS/);
  await assert.rejects(r.sendCommand(["NOSUCH"]), /unknown command/);
  const named = await make({ username: "default" });
  assert.equal(await named.ping(), "PONG");
  await named.quit();
}

async function keys() {
  assert.equal(await r.set("k", "v", { EX: 100 }), "OK");
  assert.equal(await r.get("k"), "v");
  assert.ok([99, 100].includes(await r.ttl("k")));
  assert.equal(Number(await r.expire("k", 50)), 1);
  assert.ok((await r.pTTL("k")) <= 50_000);
  assert.equal(Number(await r.persist("k")), 1);
  assert.equal(await r.ttl("k"), -1);
  assert.equal(Number(await r.expireAt("k", Math.floor(Date.now() / 1000) + 60)), 1);
  assert.equal(await r.set("k", "w", { NX: true }), null);
  assert.equal(await r.set("k", "w", { KEEPTTL: true, XX: true }), "OK");
  assert.ok((await r.ttl("k")) > 50);
  assert.equal(await r.set("k", "x", { PX: 90_000, GET: true }), "w");
  assert.equal(await r.getSet("k", "y"), "x");
  assert.equal(await r.setEx("k2", 70, "z"), "OK");
  assert.equal(await r.pSetEx("k3", 70_000, "z"), "OK");
  assert.equal(Number(await r.setNX("k4", "z")), 1);
  assert.equal(await r.getDel("k4"), "z");
  assert.equal(await r.mSet({ m1: "1", m2: "2" }), "OK");
  assert.deepEqual(await r.mGet(["m1", "missing", "m2"]), ["1", null, "2"]);
  assert.equal(await r.exists(["k", "k2", "missing"]), 2);
  assert.equal(await r.type("k"), "string");
  assert.equal(await r.append("m1", "23"), 3);
  assert.equal(await r.strLen("m1"), 3);
  assert.equal(await r.rename("m1", "m3"), "OK");
  assert.equal(await r.del(["k", "k2", "k3", "m2", "m3", "missing"]), 5);
  assert.equal(await r.get("k"), null);
  assert.equal(await r.ttl("k"), -2);
  const binary = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  assert.equal(await r.set(binary, binary, { EX: 60 }), "OK");
  assert.equal(await r.strLen(binary), 256);
  assert.equal(await r.unlink(binary), 1);
}

async function numbers() {
  assert.equal(await r.incr("n"), 1);
  assert.equal(await r.incrBy("n", 9), 10);
  assert.equal(await r.decr("n"), 9);
  assert.equal(String(await r.incrByFloat("n", 0.5)), "9.5");
  await assert.rejects(r.incr("n"), /not an integer/);
  assert.equal(await r.del("n"), 1);
}

async function scan() {
  const names = Array.from({ length: 250 }, (_, i) => `scan:${i}`).sort();
  await Promise.all(names.map((name) => r.set(name, "v", { EX: 300 }))); // one pipeline
  const found = new Set();
  // version 4 has names one by one
  for await (const page of r.scanIterator({ MATCH: "scan:*", COUNT: 17 })) for (const name of [page].flat()) found.add(name);
  assert.deepEqual([...found].sort(), names);
  assert.deepEqual((await r.keys("scan:*")).sort(), names);
  assert.equal((await r.keys("scan:?")).length, 10);
  assert.ok((await r.dbSize()) >= 250);
  assert.equal(await r.del(names), 250);
}

async function transactions() {
  const answers = await r.multi().set("t", "1", { EX: 60 }).incr("t").get("t").ttl("t").exec();
  assert.deepEqual(answers.slice(0, 3), ["OK", 2, "2"]);
  const other = await make();
  await other.watch("t");
  await r.set("t", "5");
  await assert.rejects(other.multi().set("t", "9").exec(), { name: /Error/, message: /watched keys/ });
  await other.quit();
  assert.equal(await r.get("t"), "5");
  await r.del("t");
}

const heard = new Map(); // the moments of the events of each key
const hear = (key) => heard.set(key, [...(heard.get(key) ?? []), Date.now()]);
let chat = 0;

async function subscriptions() {
  await r.configSet("notify-keyspace-events", "Ex");
  await events.pSubscribe("__key*__:exp*", hear);
  await events.subscribe("__keyevent@0__:expired", hear);
  await events.subscribe("chat", () => chat++);
  const due = new Map();
  for (let i = 0; i < 20; i++) {
    due.set(`e:${i}`, Date.now() + 300 + i * 10);
    await r.set(`e:${i}`, "v", { PX: 300 + i * 10 });
  }
  await within(20, () => [...due.keys()].every((key) => heard.get(key)?.length === 2));
  const late = [...due].flatMap(([key, at]) => heard.get(key).map((moment) => moment - at));
  assert.ok(Math.min(...late) >= -1 && Math.max(...late) < 2000, `late by ${late} ms`);
  console.log(`late by at most ${Math.max(...late)} ms`);
  assert.equal(await r.publish("chat", "hello"), 1);
  await within(5, () => chat === 1);
}

const stream = "expired:jobs";
const read = async (id) => (await r.xReadGroup("workers", "w1", { key: stream, id }, { COUNT: 10, BLOCK: 2000 }))?.[0].messages ?? [];

async function streams() {
  assert.equal(await r.xGroupCreate(stream, "workers", "$", { MKSTREAM: true }), "OK");
  await assert.rejects(r.xGroupCreate(stream, "workers", "$", { MKSTREAM: true }), /BUSYGROUP/);
  assert.equal(await r.xReadGroup("workers", "w1", { key: stream, id: ">" }, { BLOCK: 20 }), null);
  for (let i = 0; i < 10; i++) await r.set(`job:${i}`, `value ${i}`, { PX: 50 });
  const entries = [];
  await within(20, async () => entries.push(...(await read(">"))) === 10);
  assert.deepEqual(entries.map((e) => e.message.key).sort(), Array.from({ length: 10 }, (_, i) => `job:${i}`));
  assert.deepEqual(entries.map((e) => e.message.value).sort(), Array.from({ length: 10 }, (_, i) => `value ${i}`));
  const ids = entries.map((e) => e.id);
  const pending = await r.xPending(stream, "workers");
  assert.equal(pending.pending, 10);
  assert.equal(Number(pending.consumers[0].deliveriesCounter), 10);
  assert.equal((await r.xPendingRange(stream, "workers", "-", "+", 100)).length, 10);
  assert.equal(await r.xAck(stream, "workers", ids.slice(0, 8)), 8);
  assert.equal(await r.xAck(stream, "workers", ids.slice(0, 8)), 0);
  assert.equal((await read("0")).length, 2);
  const claimed = await r.xAutoClaim(stream, "workers", "w2", 0, "0-0", { COUNT: 10 });
  assert.equal(claimed.messages.length, 2);
  assert.ok((await r.xLen(stream)) >= 2);
  assert.equal(await r.xAck(stream, "workers", ids.slice(8)), 2);
  assert.equal((await r.xPending(stream, "workers")).pending, 0);
  assert.equal((await r.xInfoGroups(stream))[0].name, "workers");
}

async function restart() {
  await r.set("after", "v", { PX: 4000 });
  await r.set("job:after", "v", { PX: 4000 });
  await r.set("kept", "v", { EX: 600 });
  console.log("restart");
  const input = createInterface({ input: process.stdin });
  await input.question("");
  input.close();
  const again = (f) => f().catch((err) => (/socket|closed|reset|refused/i.test(String(err)) ? undefined : Promise.reject(err)));
  assert.equal(await within(20, () => again(() => r.get("kept"))), "v");
  await within(20, () => heard.has("after"));
  const [entry] = await within(20, async () => {
    const entries = (await again(() => read(">"))) ?? [];
    return entries.length > 0 && entries;
  });
  assert.equal(entry.message.key, "job:after");
  assert.equal(await r.xAck(stream, "workers", entry.id), 1);
}

for (const step of [connection, keys, numbers, scan, transactions, subscriptions, streams, restart]) {
  await step();
  ok(step.name);
}
await Promise.all([r.quit(), events.quit()]);
