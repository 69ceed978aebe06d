// Takes expired keys and acknowledges them by ioredis: worker.js NAME HOST:PORT...
//
// Each line of the output says that a key was got, that it is about to be acknowledged, or that this
// was counted. Entries that another worker has had for two seconds are taken over.
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis5";

const [name, ...addresses] = process.argv.slice(2);
const stream = "expired:jobs", group = "workers";
const clients = addresses.map((a) => {
  const [host, port] = a.split(":");
  return new Redis({ host, port: Number(port), password: process.env.PASSWORD, commandTimeout: 5000, maxRetriesPerRequest: 0, retryStrategy: () => 100 }).on("error", () => {});
});
let at = 0, looked = 0;

// work handles what is there.
async function work(r) {
  const entries = [];
  if (Date.now() > looked + 1000) {
    looked = Date.now();
    const claimed = await r.xautoclaim(stream, group, name, 2000, "0-0", "COUNT", 100);
    entries.push(...claimed[1].filter(([, fields]) => fields));
  }
  const answer = await r.xreadgroup("GROUP", group, name, "COUNT", 50, "BLOCK", 500, "STREAMS", stream, ">");
  if (answer) entries.push(...answer[0][1]);
  const keys = entries.map(([, fields]) => fields[fields.indexOf("key") + 1]);
  const got = Date.now();
  process.stdout.write(keys.map((key) => `got ${key} ${got}\n`).join(""));
  for (let i = 0; i < entries.length; i += 10) {
    const part = entries.slice(i, i + 10).map(([id]) => id);
    const say = (word) => process.stdout.write(keys.slice(i, i + 10).map((key) => `${word} ${key}\n`).join(""));
    say("try");
    const counted = await r.xack(stream, group, ...part).catch(() => 0);
    if (counted === part.length) say("ack");
  }
}

for (;;) {
  try {
    await work(clients[at]);
  } catch (err) {
    if (err.name === "ReplyError" && !/^(TRYAGAIN|UNKNOWN|LOADING) /.test(err.message)) throw err;
    at = (at + 1) % clients.length;
    await sleep(100);
  }
}
