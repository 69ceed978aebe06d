import assert from "node:assert/strict";
import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import { Client, type Webhook, WebhookError, type WebhookRequest, verifyWebhook } from "../src/index.js";
import { Server, gate, secret } from "./server.js";

let server: Server;
let client: Client;
before(async () => {
  server = await Server.start();
  client = new Client(server.url);
});
after(() => server.stop());

/** Has a task delivered to a receiver, and returns the request. */
async function deliver(): Promise<{ headers: http.IncomingHttpHeaders; body: Buffer }> {
  const came = gate<{ headers: http.IncomingHttpHeaders; body: Buffer }>();
  const hook = http.createServer((req, res) => {
    const chunks: Buffer[] = [];
    req.on("data", (c: Buffer) => chunks.push(c)).on("end", () => {
      res.writeHead(204).end();
      came.open({ headers: req.headers, body: Buffer.concat(chunks) });
    });
  });
  hook.listen(0, "127.0.0.1");
  await once(hook, "listening");
  const url = `http://127.0.0.1:${(hook.address() as AddressInfo).port}/`;
  await client.setTopic("hook", { delivery: { kind: "webhook", url, secret: "shop" } });
  await client.schedule({ id: "order.42", topic: "hook", payload: { order: 42, name: "Zoë" }, group: "g" });
  const request = await came.opened;
  hook.closeAllConnections();
  hook.close();
  return request;
}

test("a webhook of the server is verified, and a changed one is not", async () => {
  const { headers, body } = await deliver();
  const good: WebhookRequest = { headers, body, secrets: secret };
  const hook: Webhook<{ order: number }> = await verifyWebhook<{ order: number }>(good);
  assert.deepEqual([hook.id, hook.json().order, hook.topic, hook.attempt, hook.group, hook.receipt], ["order.42", 42, "hook", 1, "g", undefined]);
  assert.ok(Math.abs(hook.sentAt.getTime() - Date.now()) < 60_000 && hook.dueAt);
  assert.equal(headers["webhook-id"], "order%2E42");

  const other = `whsec_${Buffer.alloc(32, 1).toString("base64")}`;
  await verifyWebhook({ ...good, secrets: [other, secret] });
  await verifyWebhook({ ...good, headers: new Headers(Object.entries(headers).map(([k, v]): [string, string] => [k, String(v)])) });
  await verifyWebhook({ ...good, body: body.toString() });
  await verifyWebhook({ ...good, headers: { ...headers, "webhook-signature": `v2,x v1,%% v1,AAAA ${headers["webhook-signature"] as string}` } });
  const sent = Number(headers["webhook-timestamp"]) * 1000;
  await verifyWebhook({ ...good, now: new Date(sent + 299_000) });
  for (const bad of [
    { secrets: other },
    { body: Buffer.concat([body, Buffer.from(" ")]) },
    { headers: { ...headers, "webhook-id": "order.42" } },
    { headers: { ...headers, "webhook-timestamp": String(sent / 1000 + 1) } },
    { headers: { ...headers, "webhook-timestamp": "soon" } },
    { headers: { ...headers, "webhook-signature": "" } },
    { headers: { ...headers, "webhook-signature": "v1," } },
    { headers: {} },
    { now: new Date(sent + 301_000) },
    { now: new Date(sent - 301_000) },
    { now: new Date(sent + 11_000), tolerance: 10 },
  ]) {
    await assert.rejects(verifyWebhook({ ...good, ...bad }), WebhookError, JSON.stringify(bad));
  }
  await assert.rejects(verifyWebhook({ ...good, secrets: [] }), TypeError);
  await assert.rejects(verifyWebhook({ ...good, secrets: "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" }), TypeError);
});
