import { type CallOptions, milliseconds } from "./call.js";
import type { Client } from "./client.js";
import type { Actions, DeadQuery, Span } from "./types.js";

export interface RedriveOptions {
  /** Which dead tasks. Without a topic, those of up to 100 topics, the ones with most first. What dies again stays dead. */
  filter?: Actions["filter"];
  /** Tasks a second, 1 to 1,000. Default: 100. */
  rate?: number;
  /** So many of each topic come back first, 0 to 100; 0: none. Default: 10. */
  first?: number;
  /** How long the first ones have to be delivered. Default: 1m. */
  within?: Span;
}

/** How far a redrive has come with a topic. */
export interface RedrivenTopic {
  topic: string;
  requeued: number;
  /** Why the others stay dead. */
  stopped?: string;
  over: boolean;
}

// tryAgain is how often it is looked what has become of the first tasks, in milliseconds.
const tryAgain = 250;

export async function* redrive(client: Client, options: RedriveOptions, o?: CallOptions): AsyncGenerator<RedrivenTopic, void, undefined> {
  const { rate = 100, first = 10, within = "1m" } = options, span = milliseconds("within", within);
  if (!(Number.isInteger(rate) && rate >= 1 && rate <= 1000)) throw new RangeError("rate must be from 1 to 1000");
  if (!(Number.isInteger(first) && first >= 0 && first <= 100)) throw new RangeError("first must be from 0 to 100");
  const filter = { died_to: new Date(Date.now() + 1).toISOString(), ...options.filter };
  const counts = await client.count({ ...filter, state: "dead", within: "10s" }, o);
  for (const { topic } of counts.topics) {
    const of = { ...filter, topic }, t: RedrivenTopic = { topic, requeued: 0, over: false };
    const ids = first > 0 ? await firstDead(client, of, first, o) : [];
    if (ids.length > 0) {
      t.requeued += (await client.act({ action: "requeue", ids }, o)).done;
      yield { ...t };
      t.stopped = await failure(client, ids, span, o);
      if (t.stopped !== undefined) {
        yield { ...t };
        continue;
      }
    }
    for (let cursor: string | undefined; !t.over; ) {
      const next = pause(1000, o), page = await client.act({ action: "requeue", filter: of, limit: rate, cursor }, o);
      t.requeued += page.done;
      cursor = page.next_cursor;
      t.over = cursor === undefined;
      yield { ...t };
      if (!t.over && page.done > 0) await next;
    }
  }
}

async function firstDead(client: Client, { topic, ...filter }: NonNullable<Actions["filter"]>, most: number, o?: CallOptions): Promise<string[]> {
  const ids: string[] = [];
  for await (const t of client.allDead(topic!, { ...filter, limit: most, details: false } as DeadQuery, o)) {
    ids.push(t.id);
    if (ids.length >= most) break;
  }
  return ids;
}

// failure says why all of the tasks have failed again; undefined if one was delivered.
async function failure(client: Client, ids: string[], within: number, o?: CallOptions): Promise<string | undefined> {
  for (const until = Date.now() + within; ; ) {
    let failed = 0, why = "";
    for (const id of ids) {
      const [t] = (await client.list({ id }, o)).tasks;
      if (t === undefined || t.state === "finished") return undefined;
      if (t.state === "dead" || (t.attempt > 0 && t.state !== "delivering")) [failed, why] = [failed + 1, t.last_error ?? ""];
    }
    if (failed === ids.length) return `the first ${failed} failed again: ${why}`;
    if (Date.now() > until) return `none of the first ${ids.length} was delivered within ${within} ms`;
    await pause(tryAgain, o);
  }
}

function pause(ms: number, o?: CallOptions): Promise<void> {
  return new Promise((done) => {
    const ended = (): void => { clearTimeout(timer); done(); };
    const timer = setTimeout(() => { o?.signal?.removeEventListener("abort", ended); done(); }, ms);
    o?.signal?.addEventListener("abort", ended, { once: true });
  });
}
