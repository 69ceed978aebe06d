// What libraries do that need scripts or conditions: libraries.js HOST PORT PASSWORD.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis5";
import { createClient, defineScript } from "redis";
import { RateLimiterRedis } from "rate-limiter-flexible";
import { RedisStore as LimitStore } from "rate-limit-redis";
import { rateLimit } from "express-rate-limit";
import { RedisStore as SessionStore } from "connect-redis";
import Redlock4 from "redlock4";
import { Queue } from "bullmq";

const Redlock5 = createRequire(import.meta.url)("redlock").default;
const [host, port, password] = process.argv.slice(2);
const io = new Redis({ host, port: Number(port), password });
const double = defineScript({
  NUMBER_OF_KEYS: 1,
  SCRIPT: "return redis.call('incrby', KEYS[1], ARGV[1] * 2)",
  parseCommand(parser, key, by) {
    parser.pushKey(key);
    parser.push(String(by));
  },
  transformReply: (n) => n,
});
const node = await createClient({ socket: { host, port: Number(port) }, password, scripts: { double } }).connect();
const ok = (name) => console.log("ok", name);

// A lock for two resources: nobody else gets one of them, until it is released or its time is over.
async function redlock(name, make, lock, extend, release) {
  const locks = make();
  const held = await lock(locks, [`${name}:a`, `${name}:b`], 10_000);
  await assert.rejects(lock(make(), [`${name}:b`], 10_000));
  const longer = await extend(held, 60_000);
  assert.ok((await io.pttl(`${name}:a`)) > 50_000);
  await release(longer);
  assert.equal(await io.exists(`${name}:a`, `${name}:b`), 0);
  const short = await lock(locks, [`${name}:a`], 100);
  await sleep(150);
  const next = await lock(locks, [`${name}:a`], 10_000);
  await release(short).catch(() => {});
  assert.equal(await io.exists(`${name}:a`), 1);
  await release(next);
  ok(name);
}

await redlock(
  "redlock 5",
  () => new Redlock5([io], { retryCount: 1, retryDelay: 10 }),
  (l, keys, ms) => l.acquire(keys, ms),
  (held, ms) => held.extend(ms),
  (held) => held.release(),
);
await redlock(
  "redlock 4",
  () => new Redlock4([io], { retryCount: 1, retryDelay: 10 }),
  (l, keys, ms) => l.lock(keys, ms),
  (held, ms) => held.extend(ms),
  (held) => held.unlock(),
);

const flexible = new RateLimiterRedis({ storeClient: io, points: 3, duration: 5, keyPrefix: "flexible" });
for (let i = 0; i < 3; i++) assert.equal((await flexible.consume("caller")).remainingPoints, 2 - i);
await assert.rejects(flexible.consume("caller"), (e) => e.msBeforeNext > 0 && e.msBeforeNext <= 5000);
await flexible.reward("caller", 2);
await flexible.consume("caller");
await flexible.block("other", 10);
await assert.rejects(flexible.consume("other"));
await flexible.delete("other");
ok("rate-limiter-flexible");

const limit = rateLimit({
  windowMs: 60_000,
  limit: 2,
  keyGenerator: () => "caller",
  validate: false,
  store: new LimitStore({ sendCommand: (...args) => node.sendCommand(args), prefix: "limit:" }),
});
let refused = 0;
for (let i = 0; i < 3; i++) {
  await new Promise((done) => {
    const response = { setHeader() {}, status: () => response, send: done, headersSent: false, statusCode: 200, on() {} };
    limit({ ip: "::1", headers: {}, app: { get() {} } }, new Proxy(response, { get: (r, k) => (k === "send" ? () => { refused++; done(); } : r[k]) }), done);
  });
}
assert.equal(refused, 1);
assert.ok((await io.pttl("limit:caller")) > 50_000);
ok("rate-limit-redis");

const store = new SessionStore({ client: node, prefix: "session:", ttl: 100 });
const session = { cookie: {}, user: 42 };
await store.set("s", session);
assert.equal((await store.get("s")).user, 42);
await store.touch("s", session);
assert.deepEqual(await store.ids(), ["s"]);
assert.equal(await store.length(), 1);
assert.ok((await io.ttl("session:s")) > 90);
await store.destroy("s");
assert.equal(await store.get("s"), null);
ok("connect-redis");

io.defineCommand("addUpTo", {
  numberOfKeys: 1,
  lua: "local n = redis.call('incrby', KEYS[1], ARGV[1]) if n > tonumber(ARGV[2]) then redis.call('set', KEYS[1], ARGV[2]) n = ARGV[2] end return tonumber(n)",
});
assert.equal(await io.addUpTo("up", 3, 5), 3);
assert.equal(await io.addUpTo("up", 3, 5), 5);
assert.deepEqual(await io.pipeline().addUpTo("up2", 1, 5).addUpTo("up2", 1, 5).exec(), [[null, 1], [null, 2]]);
assert.deepEqual(await io.multi().addUpTo("up3", 4, 5).addUpTo("up3", 4, 5).get("up3").exec(), [[null, 4], [null, 5], [null, "5"]]);
ok("ioredis defineCommand");

assert.equal(await node.double("double", 4), 8);
assert.equal(await node.double("double", 1), 10);
assert.deepEqual(await node.multi().double("double", 1).get("double").exec(), [12, "12"]);
ok("node-redis defineScript");

// A queue needs lists and sorted sets: the error says where that stands.
const queue = new Queue("jobs", { connection: io.duplicate({ maxRetriesPerRequest: null }), skipVersionCheck: true });
queue.on("error", () => {});
await assert.rejects(queue.add("job", {}), /docs\/redis\.md/);
await assert.rejects(io.lpush("list", "x"), /docs\/redis\.md/);
ok("bullmq is refused");
process.exit(0);
