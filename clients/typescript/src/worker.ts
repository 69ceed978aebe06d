import { type CallOptions, bounded, milliseconds, onAbort, sleep } from "./call.js";
import type { Client } from "./client.js";
import { LapseError } from "./errors.js";
import { Gatherer } from "./gatherer.js";
import { type Judgement, judge } from "./judgement.js";
import type { Delivery, Settlement, Span } from "./types.js";

export { Kill, RetryAfter } from "./judgement.js";

/** What a handler gets beside its delivery. */
export interface HandlerContext {
  /** Ends when another receiver may have the task (reason.code is "lease_lost"), or when the worker stops and its grace is over ("stopped"). */
  signal: AbortSignal;
}

/** Handles a delivery. Fulfilled: the task is done. Failed: see WorkerOptions.onFailure, RetryAfter and Kill. */
export type Handler = (delivery: Delivery, context: HandlerContext) => unknown;

export interface WorkerOptions {
  /** Handlers at once, 1 to 10,000. Default 16. */
  concurrency?: number;
  /** Deliveries that may wait for a handler, 0 to 1,000. Default 0. */
  prefetch?: number;
  /** For how long other receivers do not get the tasks of a worker that has died, 1s to 1d. Default 30s. It bounds no handler: it is extended. */
  lease?: Span;
  /** How long a call waits for tasks, 1s to 60s. Default 30s. */
  wait?: Span;
  /** How long handlers may run on when the worker stops, 1ms to 1d. Default 10s. */
  grace?: Span;
  /** What becomes of a delivery whose handler fails: "release" (the default) has it delivered again after the topic's backoff, "bury" makes the task dead. */
  onFailure?: "release" | "bury";
  /** Is told each failure: of a handler, with its delivery; of a lease that was lost; of calls to the server, without one. Default: console.error. */
  onError?: (error: unknown, delivery?: Delivery) => void;
}

/** Totals since the worker was made, and counts of this moment. */
export interface WorkerStats {
  reserved: number;
  acked: number;
  released: number;
  buried: number;
  /** Given back before they began, because the worker stopped; no attempts. */
  returned: number;
  /** Whose lease was lost before they were settled. */
  lost: number;
  extended: number;
  waiting: number;
  running: number;
  unsettled: number;
}

/** For settling when the grace is over. */
const flushTime = 5_000;
const maxReceipts = 1000;
/** How old a reserve may be for its answer to be on the way. */
const patience = 500;

interface Held {
  delivery: Delivery;
  /** The end of the lease, as far as it is known. */
  until: number;
  handling?: AbortController;
  judgement?: Judgement;
  late?: boolean;
  lost?: boolean;
}

/**
 * Receives the tasks of one topic: reserves ready tasks, hands each delivery to a handler, extends
 * leases while handlers run, and settles the deliveries by their outcomes, many with one call.
 */
export class Worker {
  private readonly o: Required<Omit<WorkerOptions, "lease" | "wait" | "grace">> & { lease: number; wait: number; grace: number };
  private readonly totals = { reserved: 0, acked: 0, released: 0, buried: 0, returned: 0, lost: 0, extended: 0 };
  private readonly open = new Set<Held>();
  private queue: Held[] = [];
  private running = 0;
  private current?: { stop: AbortController; settling: AbortController; done: Promise<void> };
  private failure: unknown;
  private freed: () => void = () => {};
  private readonly acks = new Gatherer<Held>(1, maxReceipts, (batch) => this.settle(batch, batch[0]!.judgement!));
  private readonly others = new Gatherer<Held>(4, maxReceipts, (batch) => this.settleEach(batch));

  constructor(private readonly client: Client, readonly topic: string, private readonly handler: Handler, o: WorkerOptions = {}) {
    if (!topic) throw new TypeError("the topic must be given");
    const span = (name: "lease" | "wait" | "grace", usual: number, low: number, high: number): number =>
      bounded(name, o[name] === undefined ? undefined : milliseconds(name, o[name]), usual, low, high);
    this.o = {
      concurrency: bounded("concurrency", o.concurrency, 16, 1, 10_000),
      prefetch: bounded("prefetch", o.prefetch, 0, 0, 1000),
      lease: span("lease", 30_000, 1000, 86_400_000),
      wait: span("wait", 30_000, 1000, 60_000),
      grace: span("grace", 10_000, 1, 86_400_000),
      onFailure: o.onFailure ?? "release",
      onError: o.onError ?? ((e, d) => console.error(`lapse worker of ${topic}:`, d ? `task ${d.id}, attempt ${d.attempt}:` : "", e)),
    };
  }

  get stats(): WorkerStats {
    return { ...this.totals, waiting: this.queue.length, running: this.running, unsettled: this.open.size };
  }

  /**
   * Receives until stop is called or the signal ends, and is fulfilled once the open deliveries are
   * settled: what has not begun is given back uncounted, and handlers get the grace. While the server is away
   * it waits, without a bound. It fails if the server refuses the calls as such, such as with
   * "unauthorized" or "handled", and with "unsettled" if deliveries were left open.
   */
  run(signal?: AbortSignal): Promise<void> {
    if (this.current) return Promise.reject(new Error("the worker runs already"));
    const stop = new AbortController();
    const forget = onAbort(signal, () => stop.abort());
    this.failure = undefined;
    const settling = new AbortController();
    const done = this.work(stop.signal, settling).finally(() => {
      forget();
      this.current = undefined;
    });
    this.current = { stop, settling, done };
    return done;
  }

  /** Stops the worker, and is fulfilled as run is. */
  async stop(): Promise<void> {
    this.current?.stop.abort();
    await this.current?.done;
  }

  private async work(stop: AbortSignal, settling: AbortController): Promise<void> {
    const keeping = new AbortController();
    const keeper = this.keep(keeping.signal);
    const forget = onAbort(stop, () => this.freed());
    try {
      await this.receive(stop);
    } finally {
      forget();
      await this.drain(settling);
      keeping.abort();
      await keeper;
    }
    const left = this.open.size;
    this.open.clear();
    if (this.failure !== undefined) throw this.failure;
    if (left > 0) throw failureOf("unsettled", `${left} deliveries are left unsettled, ${this.running} with handlers that still run`);
  }

  /** Reserves and begins deliveries. */
  private async receive(stop: AbortSignal): Promise<void> {
    let failures = 0;
    for (let n = await this.room(stop); n > 0; n = await this.room(stop)) {
      const asked = performance.now();
      let failure: unknown;
      try {
        const list = await this.reserve(n, stop);
        this.accept(list, stop);
        if (list.length > 0 || performance.now() - asked >= this.o.wait / 2) {
          failures = 0;
          continue;
        }
        // An answer at once without tasks: the server does not wait, since it shuts down.
      } catch (e) {
        failure = e;
        if (!stop.aborted && !heals(e)) return this.fail(e);
        if (!stop.aborted && failures === 0) this.tell(e);
      }
      if (!stop.aborted) await this.client.caller.rest(failures++, failure, stop).catch(() => {});
    }
  }

  /** Makes one call. When the worker stops while the answer may be on its way, it waits for that: otherwise no receiver would have those tasks until their leases are over. */
  private async reserve(n: number, stop: AbortSignal): Promise<Delivery[]> {
    const polling = new AbortController();
    const asked = performance.now();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const forget = onAbort(stop, () => {
      timer = setTimeout(() => polling.abort(), Math.max(patience - (performance.now() - asked), 0));
    });
    try {
      return await this.client.reserve(this.topic, { max: n, wait: this.o.wait, lease: this.o.lease }, { signal: polling.signal });
    } finally {
      clearTimeout(timer);
      forget();
    }
  }

  /** Waits until there is room for deliveries. 0: the worker stops. Besides those that handlers can take, as many may wait for the answer to their settlement. */
  private async room(stop: AbortSignal): Promise<number> {
    const most = this.o.concurrency + this.o.prefetch;
    while (!stop.aborted && this.failure === undefined) {
      const n = Math.min(most - this.running - this.queue.length, 2 * most - this.open.size, maxReceipts);
      if (n > 0) return n;
      await new Promise<void>((resolve) => (this.freed = resolve));
    }
    return 0;
  }

  private accept(list: Delivery[], stop: AbortSignal): void {
    const until = performance.now() + this.o.lease;
    this.totals.reserved += list.length;
    for (const delivery of list) {
      const held: Held = { delivery, until };
      this.open.add(held);
      this.queue.push(held);
    }
    while (this.running < this.o.concurrency && this.begin(stop)) this.running++;
  }

  /** Starts the handler of the delivery that has waited longest. */
  private begin(stop: AbortSignal): boolean {
    const held = stop.aborted ? undefined : this.queue.shift();
    if (!held) return false;
    held.handling = new AbortController();
    void this.handle(held, stop);
    return true;
  }

  private async handle(held: Held, stop: AbortSignal): Promise<void> {
    const { signal } = held.handling!;
    let judgement: Judgement = { verb: "ack" };
    try {
      await this.handler({ ...held.delivery }, { signal });
    } catch (e) {
      judgement = judge(e, this.o.onFailure);
      this.tell(e, held.delivery);
    }
    if (judgement.verb === "release" && judgement.delay === undefined && signal.aborted && codeOf(signal.reason) === "stopped") {
      judgement.delay = 0; // at once: the task is not at fault
    }
    held.judgement = judgement;
    if (!this.begin(stop)) this.running--;
    if (!this.open.has(held)) {
      // The run has ended without waiting for this handler any longer.
    } else if (held.lost) {
      this.open.delete(held);
      this.totals.lost++;
    } else {
      (judgement.verb === "ack" ? this.acks : this.others).add(held);
    }
    this.freed();
  }

  private async drain(settling: AbortController): Promise<void> {
    for (const held of this.queue.splice(0)) {
      held.judgement = { verb: "giveBack" };
      this.others.add(held);
    }
    const finished = async (): Promise<void> => {
      while (this.running > 0) await new Promise<void>((resolve) => (this.freed = resolve));
      await this.acks.idle();
      await this.others.idle();
    };
    const all = finished();
    if (!(await within(all, this.o.grace))) {
      for (const held of this.open) held.handling?.abort(failureOf("stopped", "the worker has stopped"));
      await within(all, flushTime);
    }
    settling.abort();
    await Promise.all([this.acks.idle(), this.others.idle()]);
  }

  private async settleEach(batch: Held[]): Promise<void> {
    const alike = new Map<string, Held[]>();
    for (const held of batch) {
      const key = JSON.stringify(held.judgement);
      alike.set(key, [...(alike.get(key) ?? []), held]);
    }
    for (const list of alike.values()) await this.settle(list, list[0]!.judgement!);
  }

  /** Settles deliveries with equal judgements, and repeats the call until the server has answered: receipts stay valid over its restart. */
  private async settle(batch: Held[], j: Judgement): Promise<void> {
    const signal = this.current!.settling.signal;
    let doubtful = false; // an earlier attempt may have been carried out
    for (let failures = 0; ; failures++) {
      let failure: unknown;
      try {
        const s = await this.call(j, batch.map((h) => h.delivery.receipt), { signal });
        batch = this.settled(batch, j, s, doubtful);
        if (batch.length === 0) return;
      } catch (e) {
        if (signal.aborted) return;
        if (!heals(e)) return this.fail(e);
        if (failures === 0) this.tell(e);
        doubtful ||= e instanceof LapseError && e.outcomeUnknown;
        failure = e;
      }
      await this.client.caller.rest(failures, failure, signal).catch(() => {});
      if (signal.aborted) return;
    }
  }

  private call(j: Judgement, receipts: string[], o: CallOptions): Promise<Settlement> {
    switch (j.verb) {
      case "ack":
      case "giveBack":
        return this.client[j.verb](receipts, o);
      case "bury":
        return this.client.bury(receipts, { reason: j.reason }, o);
      case "release":
        return this.client.release(receipts, { delay: j.delay, reason: j.reason }, o);
    }
  }

  /** Removes deliveries, and returns those that the server could not judge yet. After a doubtful attempt, that attempt may be what has ended a delivery. */
  private settled(batch: Held[], j: Judgement, s: Settlement, doubtful: boolean): Held[] {
    const failed = new Map(s.errors.map((e) => [e.index, e.problem.type] as const));
    const again: Held[] = [];
    batch.forEach((held, i) => {
      const type = failed.get(i);
      if (type !== undefined && !isOver(type)) return again.push(held);
      this.open.delete(held);
      if (type !== undefined && !doubtful) {
        this.totals.lost++;
        this.tell(failureOf("lease_lost", "the lease was lost before the delivery was settled"), held.delivery);
      } else if (!held.handling) this.totals.returned++;
      else if (j.verb === "ack") this.totals.acked++;
      else if (j.verb === "bury") this.totals.buried++;
      else this.totals.released++;
      return 0;
    });
    this.freed();
    return again;
  }

  /** Extends the leases of all open deliveries, each between a third and half of its time, many with one call. */
  private async keep(ended: AbortSignal): Promise<void> {
    let pause = this.o.lease / 6;
    while (!(await sleep(pause, ended).then(() => false, () => true))) {
      pause = this.o.lease / 6;
      const list = this.expiring();
      for (let i = 0; i < list.length; i += maxReceipts) {
        if (!(await this.extend(list.slice(i, i + maxReceipts), ended))) pause = this.o.lease / 30;
      }
    }
  }

  private expiring(): Held[] {
    const now = performance.now();
    const list: Held[] = [];
    for (const held of this.open) {
      const left = held.until - now;
      if (held.lost || left > (this.o.lease / 3) * 2) continue;
      list.push(held);
      if (left <= 0 && !held.judgement && held.handling && !held.late) {
        held.late = true; // the server decides whether the lease is still valid
        this.lose(held, "the lease ran out, since it could not be extended");
      }
    }
    return list;
  }

  private async extend(list: Held[], signal: AbortSignal): Promise<boolean> {
    const asked = performance.now();
    const left = Math.min(...list.map((h) => h.until)) - asked;
    try {
      const timeout = Math.max(left / 2, this.o.lease / 12);
      const s = await this.client.extend(list.map((h) => h.delivery.receipt), { lease: this.o.lease }, { signal, timeout });
      const failed = new Map(s.errors.map((e) => [e.index, e.problem.type] as const));
      list.forEach((held, i) => {
        const type = failed.get(i);
        if (type === undefined) {
          held.until = asked + this.o.lease;
          held.late = false;
          this.totals.extended++;
        } else if (isOver(type) && !held.judgement && !held.lost) {
          held.lost = true;
          this.lose(held, "the lease was lost");
        }
      });
      this.freed();
      return true;
    } catch (e) {
      if (!signal.aborted && !heals(e)) this.fail(e);
      return signal.aborted;
    }
  }

  private lose(held: Held, why: string): void {
    const failure = failureOf("lease_lost", why);
    if (held.handling) held.handling.abort(failure);
    else {
      this.queue = this.queue.filter((h) => h !== held);
      this.open.delete(held);
      this.totals.lost++;
    }
    this.tell(failure, held.delivery);
  }

  /** Ends the run for a reason that does not pass. */
  private fail(e: unknown): void {
    this.failure ??= e;
    this.current?.stop.abort();
    this.freed();
  }

  private tell(e: unknown, delivery?: Delivery): void {
    try {
      this.o.onError(e, delivery);
    } catch {
      // A failure to report a failure must not end the worker.
    }
  }
}

function failureOf(code: string, detail: string): LapseError {
  return new LapseError({ type: "about:blank", title: detail, status: 0 }, { code });
}

function codeOf(e: unknown): string | undefined {
  return e instanceof LapseError ? e.code : undefined;
}

/** Whether a failure may pass by itself. It does not if the server, or a proxy in its place, refuses the request as such. */
function heals(e: unknown): boolean {
  if (!(e instanceof LapseError) || e.code === "bad_answer") return false;
  return e.status < 300 || e.status >= 500 || e.status === 429 || e.status === 408;
}

function isOver(type: string): boolean {
  return type.endsWith("/stale_receipt") || type.endsWith("/bad_receipt");
}

/** Reports whether a promise is fulfilled in time. */
async function within(p: Promise<void>, milliseconds: number): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<boolean>((resolve) => (timer = setTimeout(() => resolve(false), milliseconds)));
  try {
    return await Promise.race([p.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}
