import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Client, type Delivery, Kill, LapseError, RetryAfter, Worker, topic } from "../src/index.js";
import { Proxy, Server, gate, until } from "./server.js";

let server: Server;
let client: Client;
before(async () => {
  server = await Server.start();
  client = new Client(server.url);
});
after(() => server.stop());

const quiet = { onError: () => {} };

/** Runs a worker while use runs, and stops it. */
async function running(worker: Worker, use: () => Promise<void>): Promise<void> {
  const run = worker.run();
  run.catch(() => {});
  try {
    await use();
  } finally {
    await worker.stop();
  }
  await run;
}

const gone = async (id: string): Promise<boolean> => client.get(id).then(() => false, (e: LapseError) => e.code === "not_found");

test("each task is handled once, at most as many at once as the concurrency, and acknowledged", async () => {
  const ids = Array.from({ length: 300 }, (_, i) => `w-${i}`);
  await client.scheduleBatch(ids.map((id) => ({ id, topic: "work", payload: id })));
  const seen: string[] = [];
  let most = 0;
  let now = 0;
  const worker = new Worker(client, "work", async (d: Delivery) => {
    most = Math.max(most, ++now);
    await new Promise(setImmediate);
    seen.push(d.payload as string);
    now--;
  }, { concurrency: 20, prefetch: 20 });
  await running(worker, () => until(() => worker.stats.acked === 300));
  assert.deepEqual(seen.sort(), ids.sort());
  assert.ok(most <= 20 && most > 1, `${most} at once`);
  assert.deepEqual((await client.list({ topic: "work" })).tasks, []);
  assert.deepEqual(worker.stats, { reserved: 300, acked: 300, released: 0, buried: 0, returned: 0, lost: 0, extended: 0, waiting: 0, running: 0, unsettled: 0 });
});

test("acknowledgements go together", async () => {
  await client.scheduleBatch(Array.from({ length: 100 }, () => ({ topic: "together" })));
  const proxy = await Proxy.start(server.url);
  const worker = new Worker(new Client(proxy.url), "together", () => {}, { concurrency: 100 });
  await running(worker, () => until(() => worker.stats.acked === 100));
  await proxy.stop();
  const calls = proxy.seen.filter((s) => s.path === "/v1/receipts/ack").length;
  assert.ok(calls < 20, `${calls} calls`);
});

test("a handler that fails: released with its text, later, or buried", async () => {
  await client.setTopic("fail", { retry: { max_attempts: 5, min_backoff: "1h", max_backoff: "1h" } });
  for (const id of ["f-plain", "f-retry", "f-bury", "f-odd"]) await client.schedule({ id, topic: "fail" });
  const told: [string, unknown][] = [];
  const worker = new Worker(client, "fail", async (d) => {
    if (d.id === "f-retry") throw new RetryAfter("1ms", "at once");
    if (d.id === "f-bury") throw new Kill("no such order");
    if (d.id === "f-odd") throw "half \ud800 of a pair"; // eslint-disable-line
    throw new Error("the provider does not answer");
  }, { onError: (e, d) => (told.push([d!.id, e]), assert.fail("and a hook that fails ends nothing")) });
  await running(worker, () => until(async () => (await client.get("f-bury")).state === "dead" && worker.stats.released === 7));
  assert.equal((await client.get("f-plain")).last_error, "the provider does not answer");
  assert.equal((await client.get("f-odd")).last_error, "half \ufffd of a pair");
  assert.deepEqual([(await client.get("f-retry")).attempt, (await client.get("f-retry")).state], [5, "dead"]);
  assert.deepEqual([(await client.get("f-bury")).reason, (await client.get("f-bury")).last_error], ["buried", "no such order"]);
  assert.ok(told.some(([id, e]) => id === "f-bury" && e instanceof Kill));
});

test("no handler ends the worker, whatever it throws", async () => {
  await client.setTopic("odd", { retry: { max_attempts: 5, min_backoff: "1h", max_backoff: "1h" } });
  const mute = Object.assign(new Error("text"), { message: 42 as unknown as string });
  const deaf = Object.defineProperty(new Error("text"), "message", { get: () => { throw new Error("no text"); } });
  const late = Object.assign(new RetryAfter("1h", "late"), { delay: Number.NaN });
  const ways: unknown[] = [mute, deaf, late, undefined, null, Symbol("s"), Object.create(null), () => new RetryAfter(Number.NaN, "never")];
  for (const i of ways.keys()) await client.schedule({ id: `odd-${i}`, topic: "odd" });
  const worker = new Worker(client, "odd", async (d) => {
    const way = ways[Number(d.id.slice(4))];
    throw typeof way === "function" ? way() : way; // eslint-disable-line
  }, { ...quiet, concurrency: 1 });
  await running(worker, () => until(() => worker.stats.released === ways.length));
  assert.equal((await client.get("odd-0")).last_error, "42");
  for (const i of ways.keys()) assert.equal((await client.get(`odd-${i}`)).attempt, 1);
});

interface Order { number: number }

test("a topic with a type", async () => {
  const orders = topic<Order>("orders");
  assert.equal((await orders.schedule(client, "o-1", "1h", { number: 1 })).id, "o-1");
  assert.equal((await orders.replace(client, "o-1", 0, { number: 2 })).created, false);
  assert.notEqual((await orders.schedule(client, "", 0, { number: 3 })).id, "");
  await client.schedule({ id: "o-none", topic: "orders" });
  const strict = topic("orders", {
    decode(payload): Order {
      const { number } = payload as Order;
      if (number > 2) throw new Error("number must be at most 2");
      return { number };
    },
    encode: (order: Order) => ({ ...order, version: 1 }),
  });
  await strict.schedule(client, "o-4", 0, { number: 4 });
  assert.deepEqual((await client.get("o-4")).payload, { number: 4, version: 1 });
  // @ts-expect-error: a payload of another type
  assert.equal(orders.request("o", "1h", "text").payload, "text");
  const seen: [number, string][] = [];
  const worker = strict.worker(client, (order, d, { signal }) => void (signal.aborted || seen.push([order.number, d.id])), quiet);
  await running(worker, () => until(() => worker.stats.acked === 1 && worker.stats.buried === 3));
  assert.deepEqual(seen, [[2, "o-1"]]);
  assert.equal((await client.get("o-4")).last_error, "payload of orders: number must be at most 2");
  assert.match((await client.get("o-none")).last_error!, /^payload of orders: Cannot destructure/);
  assert.throws(() => orders.value({ ...({} as Delivery) }), { message: "payload of orders: there is none" });
});

test("onFailure bury makes a task dead", async () => {
  await client.schedule({ id: "once-only", topic: "bury" });
  const worker = new Worker(client, "bury", () => Promise.reject(new Error("no")), { ...quiet, onFailure: "bury" });
  await running(worker, () => until(() => worker.stats.buried === 1));
  assert.equal((await client.get("once-only")).state, "dead");
});

test("a lease is extended as long as a handler runs", async () => {
  await client.schedule({ id: "long", topic: "long" });
  let attempts = 0;
  const worker = new Worker(client, "long", async () => {
    attempts++;
    const began = performance.now();
    await until(() => worker.stats.extended >= 5 && performance.now() - began > 2200); // more than two leases
  }, { lease: "1s", concurrency: 2 });
  await running(worker, () => until(() => gone("long")));
  assert.equal(attempts, 1);
  assert.equal(worker.stats.lost, 0);
});

test("a handler learns that its lease is lost", async () => {
  await client.schedule({ id: "lost", topic: "lost" });
  const ended = gate<unknown>();
  const worker = new Worker(client, "lost", async (d, { signal }) => {
    await client.release(d.receipt, { delay: "1h" }); // as if another had it
    await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
    ended.open(signal.reason);
  }, { ...quiet, lease: "1s" });
  await running(worker, async () => {
    const reason = await ended.opened;
    assert.ok(reason instanceof LapseError && reason.code === "lease_lost");
  });
  assert.equal(worker.stats.lost, 1);
});

test("a stop waits for handlers, and gives back what has not begun", async () => {
  await client.scheduleBatch([1, 2, 3].map((n) => ({ id: `s-${n}`, topic: "stop" })));
  const began = gate();
  const go = gate();
  const worker = new Worker(client, "stop", async () => {
    began.open();
    await go.opened;
  }, { concurrency: 1, prefetch: 2 });
  const run = worker.run();
  await assert.rejects(worker.run(), /runs already/);
  await began.opened;
  await until(() => worker.stats.waiting === 2);
  const stopped = worker.stop();
  await until(() => worker.stats.returned === 2);
  assert.equal((await client.get("s-2")).state, "ready");
  assert.equal(worker.stats.running, 1);
  go.open();
  await stopped;
  await run;
  assert.equal(await gone("s-1"), true);
  assert.deepEqual([worker.stats.acked, worker.stats.unsettled], [1, 0]);
});

test("a stop spends no attempt of what has not begun", async () => {
  await client.setTopic("spare", { retry: { max_attempts: 1 } });
  await client.scheduleBatch(Array.from({ length: 24 }, () => ({ topic: "spare" })));
  const go = gate();
  const worker = new Worker(client, "spare", () => go.opened, { ...quiet, concurrency: 4, prefetch: 8 });
  const run = worker.run();
  await until(() => worker.stats.running === 4 && worker.stats.waiting === 8);
  const stopped = worker.stop();
  await until(() => worker.stats.returned === 8);
  go.open();
  await Promise.all([run, stopped]);
  assert.deepEqual([worker.stats.acked, worker.stats.released], [4, 0]);
  const rest = await client.reserve("spare", { max: 100 });
  assert.deepEqual(rest.map((d) => d.attempt), Array(20).fill(1));
  assert.equal((await client.giveBack(rest.map((d) => d.receipt))).settled, 20);
});

test("a stop ends handlers after the grace, and their tasks are delivered again at once", async () => {
  await client.schedule({ id: "grace", topic: "grace" });
  const began = gate();
  const worker = new Worker(client, "grace", (_, { signal }) => {
    began.open();
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error)));
  }, { ...quiet, grace: "50ms" });
  const stop = new AbortController();
  const run = worker.run(stop.signal);
  await began.opened;
  stop.abort();
  await run;
  assert.equal((await client.get("grace")).state, "ready");
});

test("a worker outlives a crash of the server, and settles by receipts of before", async () => {
  const own = await Server.start();
  try {
    const c = new Client(own.url);
    await c.schedule({ id: "crash", topic: "crash" });
    const began = gate();
    const go = gate();
    let attempts = 0;
    const worker = new Worker(c, "crash", async () => {
      attempts++;
      began.open();
      await go.opened;
    }, { ...quiet, wait: "1s" });
    await running(worker, async () => {
      await began.opened;
      await c.setTopic("crash", { paused: true }); // or the task may be handed out again before the ack
      await own.crash();
      go.open();
      await until(() => worker.stats.acked === 1);
      await c.setTopic("crash", {});
      await c.schedule({ id: "crash-2", topic: "crash" });
      await until(() => worker.stats.acked === 2);
    });
    assert.equal(attempts, 2);
  } finally {
    await own.stop();
  }
});

test("a lost answer to an ack is no lost lease", async () => {
  const proxy = await Proxy.start(server.url);
  await client.schedule({ id: "ack-lost", topic: "ack-lost" });
  let lost = 0;
  proxy.fate = (seen) => (seen.path.endsWith("/ack") && lost++ < 5 ? "lose" : "pass");
  const worker = new Worker(new Client({ url: proxy.url, retries: 1 }), "ack-lost", () => {}, quiet);
  await running(worker, () => until(() => worker.stats.acked === 1));
  await proxy.stop();
  assert.deepEqual([worker.stats.lost, worker.stats.unsettled], [0, 0]);
});

test("a lost answer to a release is no lost lease", async () => {
  const proxy = await Proxy.start(server.url);
  await client.schedule({ id: "release-lost", topic: "release-lost" });
  let lost = 0;
  proxy.fate = (seen) => (seen.path.endsWith("/release") && lost++ < 1 ? "lose" : "pass");
  const worker = new Worker(new Client(proxy.url), "release-lost", () => Promise.reject(new RetryAfter("1h", "later")), quiet);
  await running(worker, () => until(() => worker.stats.released + worker.stats.lost === 1));
  await proxy.stop();
  assert.deepEqual([lost >= 2, worker.stats.released, worker.stats.lost], [true, 1, 0]);
});

test("a worker that is refused says why", async () => {
  await client.setTopic("hooked", { delivery: { kind: "webhook", url: "http://127.0.0.1:9/" } });
  await assert.rejects(new Worker(client, "hooked", () => {}, quiet).run(), (e) => e instanceof LapseError && e.code === "handled");
  assert.throws(() => new Worker(client, "t", () => {}, { concurrency: 0 }), RangeError);
  assert.throws(() => new Worker(client, "t", () => {}, { lease: "1 hour" }), TypeError);
});
