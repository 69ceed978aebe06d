// What a program does with ioredis: ioredis.js HOST PORT PASSWORD MODULE.
import assert from "node:assert/strict";
import { createInterface } from "node:readline/promises";
import { setTimeout as sleep } from "node:timers/promises";

const [host, port, password, module] = process.argv.slice(2);
const { Redis } = await import(module);
const options = { host, port: Number(port), password, connectionName: "tour", retryStrategy: () => 50, maxRetriesPerRequest: null };
const make = (more) => new Redis({ ...options, ...more }).on("error", () => {});
const ok = (step) => console.log("ok", step);

// within calls f until it returns something true.
async function within(seconds, f) {
  for (const end = Date.now() + seconds * 1000; ; await sleep(10)) {
    const found = await f();
    if (found) return found;
    if (Date.now() > end) throw new Error(`still waiting after ${seconds} s`);
  }
}

const r = make();

async function connection() {
  assert.equal(await r.ping(), "PONG");
  assert.equal(await r.client("GETNAME"), "tour");
  assert.ok((await r.client("ID")) > 0);
  assert.match(await r.info(), /redis_version:/);
  assert.equal(await r.echo("hello"), "hello");
  assert.ok((await r.command("COUNT")) > 50);
  const stranger = make({ password: "wrong", retryStrategy: () => null, maxRetriesPerRequest: 0 });
  await assert.rejects(stranger.ping(), /WRONGPASS/);
  stranger.disconnect();
  await assert.rejects(r.call("NOSUCH"), /unknown command/);
  const named = make({ username: "default" });
  assert.equal(await named.ping(), "PONG");
  named.disconnect();
}

async function keys() {
  assert.equal(await r.set("k", "v", "EX", 100), "OK");
  assert.equal(await r.get("k"), "v");
  assert.ok([99, 100].includes(await r.ttl("k")));
  assert.equal(await r.expire("k", 50), 1);
  assert.ok((await r.pttl("k")) <= 50_000);
  assert.equal(await r.persist("k"), 1);
  assert.equal(await r.ttl("k"), -1);
  assert.equal(await r.expireat("k", Math.floor(Date.now() / 1000) + 60), 1);
  assert.equal(await r.set("k", "w", "NX"), null);
  assert.equal(await r.set("k", "w", "KEEPTTL", "XX"), "OK");
  assert.ok((await r.ttl("k")) > 50);
  assert.equal(await r.set("k", "x", "PX", 90_000, "GET"), "w");
  assert.equal(await r.getset("k", "y"), "x");
  assert.equal(await r.setex("k2", 70, "z"), "OK");
  assert.equal(await r.psetex("k3", 70_000, "z"), "OK");
  assert.equal(await r.setnx("k4", "z"), 1);
  assert.equal(await r.getex("k2", "EX", 80), "z");
  assert.equal(await r.getdel("k4"), "z");
  assert.equal(await r.mset({ m1: "1", m2: "2" }), "OK");
  assert.deepEqual(await r.mget("m1", "missing", "m2"), ["1", null, "2"]);
  assert.equal(await r.exists("k", "k2", "missing"), 2);
  assert.equal(await r.type("k"), "string");
  assert.equal(await r.append("m1", "23"), 3);
  assert.equal(await r.strlen("m1"), 3);
  assert.equal(await r.rename("m1", "m3"), "OK");
  assert.equal(await r.del("k", "k2", "k3", "m2", "m3", "missing"), 5);
  assert.equal(await r.get("k"), null);
  assert.equal(await r.ttl("k"), -2);
  const binary = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  assert.equal(await r.set(binary, binary, "EX", 60), "OK");
  assert.deepEqual(await r.getBuffer(binary), binary);
  assert.equal(await r.unlink(binary), 1);
}

async function numbers() {
  assert.equal(await r.incr("n"), 1);
  assert.equal(await r.incrby("n", 9), 10);
  assert.equal(await r.decr("n"), 9);
  assert.equal(String(await r.incrbyfloat("n", 0.5)), "9.5");
  await assert.rejects(r.incr("n"), /not an integer/);
  assert.equal(await r.del("n"), 1);
}

async function scan() {
  const names = Array.from({ length: 250 }, (_, i) => `scan:${i}`).sort();
  const p = r.pipeline();
  for (const name of names) p.set(name, "v", "EX", 300);
  assert.deepEqual(await p.exec(), names.map(() => [null, "OK"]));
  const found = new Set();
  for await (const page of r.scanStream({ match: "scan:*", count: 17 })) for (const name of page) found.add(name);
  assert.deepEqual([...found].sort(), names);
  assert.deepEqual((await r.keys("scan:*")).sort(), names);
  assert.equal((await r.keys("scan:?")).length, 10);
  assert.ok((await r.dbsize()) >= 250);
  assert.equal(await r.del(names), 250);
}

async function transactions() {
  const answers = await r.multi().set("t", "1", "EX", 60).incr("t").get("t").ttl("t").exec();
  assert.deepEqual(answers.slice(0, 3), [[null, "OK"], [null, 2], [null, "2"]]);
  const other = make();
  await r.watch("t");
  await other.set("t", "5");
  assert.equal(await r.multi().set("t", "9").exec(), null);
  other.disconnect();
  assert.equal(await r.get("t"), "5");
  await r.del("t");
}

const heard = new Map(); // the moments of the events of each key
let chat = 0;
const events = make();
events.on("message", (channel, text) => {
  if (channel === "chat") chat++;
  else heard.set(text, [...(heard.get(text) ?? []), Date.now()]);
});
events.on("pmessage", (_pattern, _channel, text) => heard.set(text, [...(heard.get(text) ?? []), Date.now()]));

async function subscriptions() {
  await r.config("SET", "notify-keyspace-events", "Ex");
  assert.equal(await events.psubscribe("__key*__:exp*"), 1);
  assert.equal(await events.subscribe("__keyevent@0__:expired", "chat"), 3);
  const due = new Map();
  for (let i = 0; i < 20; i++) {
    due.set(`e:${i}`, Date.now() + 300 + i * 10);
    await r.set(`e:${i}`, "v", "PX", 300 + i * 10);
  }
  await within(20, () => [...due.keys()].every((key) => heard.get(key)?.length === 2));
  const late = [...due].flatMap(([key, at]) => heard.get(key).map((moment) => moment - at));
  assert.ok(Math.min(...late) >= -1 && Math.max(...late) < 2000, `late by ${late} ms`);
  console.log(`late by at most ${Math.max(...late)} ms`);
  assert.equal(await r.publish("chat", "hello"), 1);
  await within(5, () => chat === 1);
}

const stream = "expired:jobs";
const read = (id) => r.xreadgroup("GROUP", "workers", "w1", "COUNT", 10, "BLOCK", 2000, "STREAMS", stream, id);
// version 3 of the protocol has a map
const entriesOf = (answer) => (answer ? (Array.isArray(answer) ? answer[0][1] : Object.values(answer)[0]) : []);
const fieldsOf = ([, list]) => Object.fromEntries(Array.from({ length: list.length / 2 }, (_, i) => [list[2 * i], list[2 * i + 1]]));

async function streams() {
  assert.equal(await r.xgroup("CREATE", stream, "workers", "$", "MKSTREAM"), "OK");
  await assert.rejects(r.xgroup("CREATE", stream, "workers", "$", "MKSTREAM"), /BUSYGROUP/);
  assert.equal(await r.xreadgroup("GROUP", "workers", "w1", "BLOCK", 20, "STREAMS", stream, ">"), null);
  for (let i = 0; i < 10; i++) await r.set(`job:${i}`, `value ${i}`, "PX", 50);
  const entries = [];
  await within(20, async () => entries.push(...entriesOf(await read(">"))) === 10);
  assert.deepEqual(entries.map((e) => fieldsOf(e).key).sort(), Array.from({ length: 10 }, (_, i) => `job:${i}`));
  assert.deepEqual(entries.map((e) => fieldsOf(e).value).sort(), Array.from({ length: 10 }, (_, i) => `value ${i}`));
  const ids = entries.map(([id]) => id);
  const [pending, , , consumers] = await r.xpending(stream, "workers");
  assert.equal(pending, 10);
  assert.deepEqual(consumers, [["w1", "10"]]);
  assert.equal((await r.xpending(stream, "workers", "-", "+", 100)).length, 10);
  assert.equal(await r.xack(stream, "workers", ...ids.slice(0, 8)), 8);
  assert.equal(await r.xack(stream, "workers", ...ids.slice(0, 8)), 0);
  assert.equal(entriesOf(await read("0")).length, 2);
  const [, claimed] = await r.xautoclaim(stream, "workers", "w2", 0, "0-0", "COUNT", 10);
  assert.equal(claimed.length, 2);
  assert.ok((await r.xlen(stream)) >= 2);
  assert.equal(await r.xack(stream, "workers", ...ids.slice(8)), 2);
  assert.equal((await r.xpending(stream, "workers"))[0], 0);
  assert.equal((await r.xinfo("GROUPS", stream)).length, 1);
}

async function restart() {
  await r.set("after", "v", "PX", 4000);
  await r.set("job:after", "v", "PX", 4000);
  await r.set("kept", "v", "EX", 600);
  console.log("restart");
  const input = createInterface({ input: process.stdin });
  await input.question("");
  input.close();
  assert.equal(await r.get("kept"), "v");
  await within(20, () => heard.has("after"));
  const [entry] = await within(20, async () => {
    const entries = entriesOf(await read(">"));
    return entries.length > 0 && entries;
  });
  assert.equal(fieldsOf(entry).key, "job:after");
  assert.equal(await r.xack(stream, "workers", entry[0]), 1);
}

for (const step of [connection, keys, numbers, scan, transactions, subscriptions, streams, restart]) {
  await step();
  ok(step.name);
}
await Promise.all([r.quit(), events.quit()]);
