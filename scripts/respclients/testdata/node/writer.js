// Sets keys with TTLs by ioredis: writer.js NAME COUNT SEED HOST:PORT...
//
// Two keys of three are orders, the others are jobs. Some orders are deleted, and some get a longer
// TTL. None is deleted whose SET was repeated: a node that stood still may run the first one after
// the DEL. A command without an answer, or with an error that asks for it, is repeated, at the next
// address. Each line of the output is a key that is to expire, and the milliseconds between which
// its deadline is, or one that was deleted.
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis5";

const [name, count, seed, ...addresses] = process.argv.slice(2);
const clients = addresses.map((a) => {
  const [host, port] = a.split(":");
  return new Redis({ host, port: Number(port), password: process.env.PASSWORD, commandTimeout: 3000, maxRetriesPerRequest: 0, retryStrategy: () => 100 }).on("error", () => {});
});
let at = 0;
let state = Number(seed) + 1;
const random = (n) => (state = (state * 48271) % 2147483647) % n;
const batchSize = 20;

// all runs commands in one pipeline. It returns the answers, or errors.
async function all(commands) {
  const results = await Promise.allSettled(commands.map((c) => clients[at].call(...c)));
  const answers = results.map((r) => (r.status === "fulfilled" ? r.value : r.reason));
  for (const a of answers)
    if (a instanceof Error && a.name === "ReplyError" && !/^(TRYAGAIN|UNKNOWN|LOADING) /.test(a.message)) throw a;
  if (answers.some((a) => a instanceof Error)) {
    at = (at + 1) % clients.length;
    await sleep(100);
  }
  return answers;
}

async function retried(...command) {
  for (;;) {
    const begun = Date.now();
    const [answer] = await all([command]);
    if (!(answer instanceof Error)) return [answer, begun, Date.now()];
  }
}

for (let first = 0; first < Number(count); first += batchSize) {
  const keys = [];
  for (let i = first; i < Math.min(first + batchSize, Number(count)); i++)
    keys.push({ i, key: `${i % 3 === 2 ? "job" : "order"}:${name}:${i}`, ttl: 8000 + random(12_000), begun: 0, due: null, repeated: false });
  for (let left = keys; left.length > 0; ) {
    for (const k of left) k.begun ||= Date.now();
    const answers = await all(left.map((k) => ["SET", k.key, `value of ${k.key}`, "PX", k.ttl]));
    left.forEach((k, n) => {
      if (!(answers[n] instanceof Error)) k.due = [k.begun + k.ttl, Date.now() + k.ttl];
    });
    left = left.filter((_, n) => answers[n] instanceof Error);
    for (const k of left) k.repeated = true;
  }
  let text = "";
  for (const { i, key, ttl, due, repeated } of keys) {
    if (i % 30 === 1 && !repeated) {
      await retried("DEL", key);
      text += `del ${key}\n`;
      continue;
    }
    if (i % 30 === 4) {
      const [answer, earliest, latest] = await retried("PEXPIRE", key, ttl + 2000);
      if (answer !== 1) throw new Error(`${key} is gone`);
      due[0] = Math.min(earliest + ttl + 2000, due[0] + 2000);
      due[1] = latest + ttl + 2000;
    }
    text += `set ${key} ${due[0]} ${due[1]}\n`;
  }
  process.stdout.write(text);
}
for (const c of clients) c.disconnect();
