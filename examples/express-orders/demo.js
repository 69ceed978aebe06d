// Two customers: one pays, the other one forgets to.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "@lapsehq/lapse";
import { createApp, createWorker } from "./app.js";

const lapse = new Client(process.env.LAPSE_URL ?? "http://127.0.0.1:7480");
const orders = new Map();
const worker = createWorker(lapse, orders);
const working = worker.run();
const server = createApp(lapse, orders, "2s").listen(0, "127.0.0.1");
await once(server, "listening");

async function call(method, path, body) {
  const answer = await fetch(`http://127.0.0.1:${server.address().port}${path}`, {
    method, body: body && JSON.stringify(body), headers: { "content-type": "application/json" },
  });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status}`);
  const order = await answer.json();
  console.log(`${method} ${path}: order ${order.id} is ${order.state}`);
}

await call("POST", "/orders", { id: "41" });
await call("POST", "/orders", { id: "42" });
await call("POST", "/orders/41/pay");
while (orders.get("42").state === "unpaid") await sleep(50);
await call("GET", "/orders/41");
await call("GET", "/orders/42");

server.close();
await worker.stop();
await working;
