import { LapseError, Worker } from "@lapsehq/lapse";
import express from "express";

/**
 * An app for orders that have to be paid in time.
 *
 * @param {import("@lapsehq/lapse").Client} lapse
 * @param {Map<string, {id: string, state: string}>} orders in the place of your database
 * @param {string} timeToPay such as "30m"
 */
export function createApp(lapse, orders, timeToPay) {
  const app = express();
  app.use(express.json());

  app.post("/orders", async (req, res) => {
    const order = { id: req.body.id, state: "unpaid" };
    orders.set(order.id, order);
    await lapse.replace({ id: taskOf(order), topic: "order.unpaid", delay: timeToPay, payload: { order: order.id } });
    res.status(201).json(order);
  });

  app.post("/orders/:id/pay", async (req, res) => {
    const order = orders.get(req.params.id);
    if (order?.state !== "unpaid") return res.sendStatus(409);
    order.state = "paid";
    // If this comes too late or fails, the worker finds an order that is paid, and leaves it.
    await lapse.cancel(taskOf(order)).catch((e) => {
      if (!(e instanceof LapseError)) throw e;
    });
    res.json(order);
  });

  app.get("/orders/:id", (req, res) => {
    const order = orders.get(req.params.id);
    return order ? res.json(order) : res.sendStatus(404);
  });

  return app;
}

/** Cancels what was not paid. It may run in any number of processes. */
export function createWorker(lapse, orders) {
  return new Worker(lapse, "order.unpaid", async (task) => {
    const order = orders.get(task.payload.order);
    if (order?.state !== "unpaid") return;
    order.state = "cancelled";
    console.log(`order ${order.id} was not paid in time`);
  });
}

const taskOf = (order) => `order-${order.id}`;
