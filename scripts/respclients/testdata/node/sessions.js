// Users of an Express session store, by connect-redis and express-session: sessions.js USERS HOST:PORT...
//
// Each user counts requests in its session. Each line of the output is a request that was answered:
// when it began, and how many milliseconds it took; or a session that was lost. A request that has
// failed is repeated, at the next address.
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import session from "express-session";
import { createClient } from "redis";
import { RedisStore } from "connect-redis";

const [users, ...addresses] = process.argv.slice(2);
const clients = addresses.map((a) => {
  const [host, port] = a.split(":");
  const socket = { host, port: Number(port), connectTimeout: 1000, socketTimeout: 3000, reconnectStrategy: () => 100 };
  const c = createClient({ socket, password: process.env.PASSWORD, disableOfflineQueue: true }).on("error", () => {});
  c.connect().catch(() => {});
  return c;
});
let at = 0;
const any = new Proxy({}, {
  get: (_, name) => async (...args) => {
    const used = at;
    try {
      return await clients[used][name](...args);
    } catch (err) {
      if (at === used) at = (at + 1) % clients.length;
      throw err;
    }
  },
});
const middleware = session({ store: new RedisStore({ client: any, prefix: "session:", ttl: 600 }), secret: "s", resave: false, saveUninitialized: false });
const server = createServer((req, res) =>
  middleware(req, res, (err) => {
    const end = (failed) => ((res.statusCode = failed ? 500 : 200), res.end(String(req.session?.n)));
    if (err) return end(err);
    req.session.n = (req.session.n ?? 0) + 1;
    req.session.save(end);
  }),
).listen(0, "127.0.0.1");
await new Promise((listening) => server.on("listening", listening));
const url = `http://127.0.0.1:${server.address().port}/`;
console.error = () => {}; // of the middleware, when a session cannot be touched

async function user() {
  let cookie = null, last = 0;
  for (;;) {
    const begun = Date.now();
    const answer = await fetch(url, { headers: cookie ? { cookie } : {} });
    const n = Number(await answer.text());
    if (answer.status !== 200) {
      await sleep(100);
      continue;
    }
    cookie ??= answer.headers.get("set-cookie").split(";")[0];
    process.stdout.write(n > last ? `took ${begun} ${Date.now() - begun}\n` : `lost ${last} ${n}\n`);
    last = n;
    await sleep(30);
  }
}
await Promise.all(Array.from({ length: Number(users) }, user));
