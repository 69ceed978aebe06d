import type { CallOptions } from "./call.js";
import type { Client } from "./client.js";
import { Kill } from "./judgement.js";
import type { Delivery, NewTask, ScheduledTask, Span } from "./types.js";
import { type Handler, type HandlerContext, Worker, type WorkerOptions } from "./worker.js";

/** What is between a value and the JSON of a payload. What is left out takes the one for the other. */
export interface Codec<T> {
  /** Makes a value of a payload, undefined if there is none. It throws if that is none, such as the parse of a schema. */
  decode?: (payload: unknown) => T;
  /** Makes what JSON.stringify takes. */
  encode?: (value: T) => unknown;
}

/** Handles the value of a delivery, as a Handler does. */
export type TypedHandler<T> = (value: T, delivery: Delivery, context: HandlerContext) => unknown;

/**
 * Names a topic whose tasks carry a T each. It is a value of the program, like a constant, and calls
 * nothing. Without a decoder the type of payloads is taken on trust.
 */
export function topic<T>(name: string, codec: Codec<T> = {}): Topic<T> {
  return new Topic(name, codec);
}

/** The name of a topic together with the type of what its tasks carry. */
export class Topic<T> {
  constructor(readonly name: string, private readonly codec: Codec<T>) {}

  /** Makes the request for a task that is due after delay, for callers that add to it, such as a group. */
  request(id: string, delay: Span, value: T): NewTask & { id: string } {
    return { id, topic: this.name, delay, payload: this.codec.encode ? this.codec.encode(value) : value };
  }

  /** Has a task delivered after delay. An empty id has one made. */
  async schedule(client: Client, id: string, delay: Span, value: T, o?: CallOptions): Promise<ScheduledTask> {
    const request = this.request(id, delay, value);
    return client.schedule({ ...request, id: id || undefined }, o);
  }

  /** Schedules like schedule, in place of the pending or ready task of the same id, if there is one. */
  async replace(client: Client, id: string, delay: Span, value: T, o?: CallOptions): Promise<ScheduledTask> {
    return client.replace(this.request(id, delay, value), o);
  }

  /** Makes a handler that hands over the decoded payloads. A payload that is missing or does not decode kills its task, which can be requeued. */
  handler(handle: TypedHandler<T>): Handler {
    return async (delivery, context) => {
      let value: T;
      try {
        value = this.value(delivery);
      } catch (e) {
        throw new Kill(e instanceof Error ? e.message : String(e), { cause: e });
      }
      await handle(value, delivery, context);
    };
  }

  /** Makes a worker of the topic with the handler of handle. */
  worker(client: Client, handle: TypedHandler<T>, o?: WorkerOptions): Worker {
    return new Worker(client, this.name, this.handler(handle), o);
  }

  /** Decodes the payload of a delivery, for receivers that reserve. */
  value(delivery: Delivery): T {
    try {
      if (this.codec.decode) return this.codec.decode(delivery.payload);
    } catch (e) {
      throw new TypeError(`payload of ${this.name}: ${e instanceof Error ? e.message : String(e)}`, { cause: e });
    }
    if (delivery.payload === undefined) throw new TypeError(`payload of ${this.name}: there is none`);
    return delivery.payload as T;
  }
}
