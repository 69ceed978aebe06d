// Schedules a task and receives it. The types of all calls come from the server's own document.
import createClient from "openapi-fetch";
import type { paths } from "./build/lapse.js";

const lapse = createClient<paths>({ baseUrl: process.env.LAPSE_URL ?? "http://127.0.0.1:7480" });

/** Returns the data of an answer, or throws its problem. */
function data<T>(answer: { data?: T; error?: unknown }): T {
  if (answer.error !== undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data as T;
}

const task = data(await lapse.POST("/v1/tasks", {
  body: { id: "invoice-7", topic: "invoice.due", delay: "1s", payload: { invoice: 7 } },
}));
console.log(`${task.id} is ${task.state}`);

const { tasks } = data(await lapse.POST("/v1/topics/{topic}/reserve", {
  params: { path: { topic: "invoice.due" } },
  body: { wait: "20s" },
}));
for (const due of tasks) {
  console.log(`${due.id} is due, attempt ${due.attempt}`);
  const { settled } = data(await lapse.POST("/v1/receipts/ack", { body: { receipts: [due.receipt] } }));
  console.log(`${settled} is acknowledged`);
}
