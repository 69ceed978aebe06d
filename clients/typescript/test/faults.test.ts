import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Client, LapseError, type Repetition } from "../src/index.js";
import { type Fate, Proxy, type Seen, Server, until } from "./server.js";

let server: Server;
let direct: Client;
before(async () => {
  server = await Server.start();
  direct = new Client(server.url);
});
after(() => server.stop());

/** A client behind a proxy. */
async function behind(fate: (seen: Seen, nth: number) => Fate, more: object, use: (c: Client, p: Proxy) => Promise<void>): Promise<void> {
  const proxy = await Proxy.start(server.url, fate);
  try {
    await use(new Client({ url: proxy.url, ...more }), proxy);
  } finally {
    await proxy.stop();
  }
}

const overloaded = { status: 429, headers: { "content-type": "application/problem+json", "retry-after": "1" }, body: JSON.stringify({ type: "/problems/overloaded", title: "Overloaded", status: 429 }) };

test("a schedule whose answer is lost is repeated with its id, and happens once", () =>
  behind((_, nth) => (nth < 3 ? "lose" : "pass"), {}, async (c, p) => {
    const task = await c.schedule({ topic: "once", delay: "1h" });
    assert.equal(p.seen.length, 3);
    assert.equal(new Set(p.seen.map((s) => s.body)).size, 1);
    assert.equal(task.created, false);
    const { tasks } = await direct.list({ topic: "once" });
    assert.deepEqual(tasks.map((t) => t.id), [task.id]);
  }));

test("the application is told of repetitions", async () => {
  const told: Repetition[] = [];
  await behind((_, nth) => (nth < 3 ? "lose" : "pass"), { onRepeat: (r: Repetition) => told.push(r) }, async (c) => {
    await c.schedule({ topic: "told", delay: "1h" });
    assert.deepEqual(told.map((r) => [r.method, r.path, r.failed, r.error.code]), [["POST", "/v1/tasks", 1, "outcome_unknown"], ["POST", "/v1/tasks", 2, "outcome_unknown"]]);
    assert.ok(told.every((r) => r.pause > 0));
  });
});

test("a call whose effect may happen twice is not repeated", () =>
  behind(() => "lose", {}, async (c, p) => {
    await assert.rejects(c.fire("none"), (e) => e instanceof LapseError && e.outcomeUnknown && !e.retryable);
    await assert.rejects(c.reserve("t"), (e) => e instanceof LapseError && e.outcomeUnknown && !e.retryable);
    assert.equal(p.seen.length, 2);
  }));

test("an open outcome names the id", () =>
  behind(() => "lose", { retries: 1 }, async (c, p) => {
    await assert.rejects(c.schedule({ topic: "t" }), (e) => e instanceof LapseError && e.outcomeUnknown && e.retryable && e.id === (JSON.parse(p.seen[0]!.body) as { id: string }).id);
    await assert.rejects(c.scheduleBatch([{ topic: "t" }]), (e) => e instanceof LapseError && e.ids?.length === 1);
    assert.equal(p.seen.length, 4);
  }));

test("without retries no ids are made, and nothing is repeated", () =>
  behind(() => "lose", { retries: 0 }, async (c, p) => {
    await assert.rejects(c.schedule({ topic: "t" }), (e) => e instanceof LapseError && e.outcomeUnknown && !e.retryable);
    assert.deepEqual(p.seen.map((s) => s.body), ['{"topic":"t"}']);
  }));

test("Retry-After is heeded, up to maxWait", () =>
  behind((_, nth) => (nth === 1 ? overloaded : "pass"), {}, async (c, p) => {
    const began = performance.now();
    await c.schedule({ topic: "t", delay: "1h" });
    assert.ok(performance.now() - began >= 1000);
    assert.equal(p.seen.length, 2);
    p.fate = () => overloaded;
    const hasty = new Client({ url: p.url, maxWait: 500 });
    await assert.rejects(hasty.fire("x"), (e) => e instanceof LapseError && e.code === "overloaded" && e.retryAfter === 1000 && e.retryable);
    assert.equal(p.seen.length, 3);
  }));

test("a call that hangs ends after its time-out, or with its signal", () =>
  behind(() => "hang", { retries: 0, timeout: 50 }, async (c, p) => {
    await assert.rejects(c.get("x"), (e) => e instanceof LapseError && e.code === "unreachable" && e.detail === "no answer in time");
    await assert.rejects(c.cancel("x"), (e) => e instanceof LapseError && e.outcomeUnknown);
    const stop = new AbortController();
    const call = c.get("x", { signal: stop.signal, timeout: 60_000 });
    void until(() => p.seen.length === 3).then(() => stop.abort(new Error("gone")));
    await assert.rejects(call, /gone/);
    await assert.rejects(c.get("x", { signal: AbortSignal.abort(new Error("before")) }), /before/);
    assert.equal(p.seen.length, 3);
  }));

test("answers are bounded, and those of others are not taken for Lapse's", () =>
  behind(() => ({ status: 200, body: `"${"x".repeat(5000)}"` }), { maxAnswer: 2000 }, async (c, p) => {
    await assert.rejects(c.get("x"), (e) => e instanceof LapseError && e.code === "bad_answer" && !e.retryable);
    p.fate = () => ({ status: 200, body: "<html>" });
    await assert.rejects(c.get("x"), (e) => e instanceof LapseError && e.code === "bad_answer");
    p.fate = () => ({ status: 302, headers: { location: server.url } });
    await assert.rejects(c.schedule({ topic: "t" }), (e) => e instanceof LapseError && e.status === 302 && !e.retryable);
    p.fate = () => ({ status: 200, headers: { "content-type": "text/html" }, body: "<html>" });
    await assert.rejects(c.events(), (e) => e instanceof LapseError && e.code === "bad_answer");
    assert.equal(p.seen.length, 4);
    p.fate = () => ({ status: 502, body: "bad gateway" });
    await assert.rejects(c.fire("x"), (e) => e instanceof LapseError && e.outcomeUnknown && e.type === "about:blank" && e.status === 502);
  }));

test("no server: nothing has happened", async () => {
  const proxy = await Proxy.start(server.url);
  await proxy.stop();
  const c = new Client({ url: proxy.url, retries: 1, maxWait: 1 });
  await assert.rejects(c.schedule({ topic: "t" }), (e) => e instanceof LapseError && e.code === "unreachable" && e.retryable);
});

test("a stream of events ends with its server", () =>
  behind(() => "pass", {}, async (c, p) => {
    const events = await c.events({ topic: ["quiet"] });
    const next = events.next();
    await p.stop().catch(() => {});
    await assert.rejects(next, (e) => e instanceof LapseError && e.retryable);
  }));
