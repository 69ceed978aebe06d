import { LapseError, isHarmless, problemOf } from "./errors.js";

/** Options of a client. Only `url` is required. */
export interface ClientOptions {
  /** Of the server, such as "http://127.0.0.1:7480". It may have a path, for a proxy. */
  url: string;
  /** Sent as a bearer token with every request. */
  token?: string;
  /** Milliseconds that each attempt of a call may take, 10,000 by default. Reserve adds its wait, and calls that may touch all tasks of a topic add two minutes. */
  timeout?: number;
  /** How often a call is repeated where that is safe, 3 by default. 0: never, and then no ids are made either. */
  retries?: number;
  /** The longest pause before a repetition in milliseconds, 10,000 by default. A server that asks for more gets no repetition. */
  maxWait?: number;
  /** The longest answer in bytes, 64 MiB by default. */
  maxAnswer?: number;
  /** Makes the requests. Default: the platform's. */
  fetch?: typeof fetch;
  /** Is told of each attempt of a call that has failed and is followed by another one, before the pause. What it throws ends the call. */
  onRepeat?: (repetition: Repetition) => void;
}

/** Says why and when a call is repeated. */
export interface Repetition {
  method: string;
  path: string;
  /** Attempts that have failed so far. */
  failed: number;
  /** Milliseconds until the next one. */
  pause: number;
  /** Of the last one. */
  error: LapseError;
}

/** Options of one call. */
export interface CallOptions {
  /** Ends the call, which then fails with the signal's reason. A call that writes may have been carried out. */
  signal?: AbortSignal;
  /** Milliseconds for each attempt, in place of the client's. */
  timeout?: number;
}

/** What a second request adds to the first: nothing ever happens; the same thing, once; the effect again. */
export type Effect = "reads" | "same" | "again";

/** One request, with what is known about repeating it. */
export interface Call {
  method: string;
  path: string;
  query?: object;
  headers?: Record<string, string>;
  body?: unknown;
  /** The body as it is sent. Caller.call sets it. */
  text?: string | undefined;
  effect: Effect;
  /** Milliseconds on top of the timeout. */
  extra?: number;
  /** A status besides 2xx that is a success. */
  also?: number;
}

export interface Answer {
  status: number;
  text: string;
}

/** Milliseconds more for a call that may touch all tasks of a topic or a group. */
export const wholeTopic = 120_000;
const firstPause = 100;
const longestPause = 2_000;

/** Makes calls, and repeats them as long as that is safe. */
export class Caller {
  readonly retries: number;
  private readonly base: string;
  private readonly fetch: typeof fetch;
  private readonly headers: Record<string, string>;
  private readonly timeout: number;
  private readonly maxWait: number;
  private readonly maxAnswer: number;
  private readonly onRepeat: ClientOptions["onRepeat"];

  constructor(o: ClientOptions) {
    const url = new URL(o.url);
    if (url.protocol !== "http:" && url.protocol !== "https:") throw new TypeError("option url must begin with http:// or https://");
    if (url.username || url.password || url.search || url.hash) throw new TypeError("option url must have neither a user nor a query; a token is an option of its own");
    if (o.token !== undefined && !/^[!-~]+$/.test(o.token)) throw new TypeError("option token must be printable ASCII without spaces");
    this.base = url.href.replace(/\/+$/, "");
    this.timeout = bounded("timeout", o.timeout, 10_000, 1, 3_600_000);
    this.retries = bounded("retries", o.retries, 3, 0, 100);
    this.maxWait = bounded("maxWait", o.maxWait, 10_000, 0, 3_600_000);
    this.maxAnswer = bounded("maxAnswer", o.maxAnswer, 64 << 20, 1 << 10, 1 << 30);
    this.onRepeat = o.onRepeat;
    const given = o.fetch ?? globalThis.fetch;
    this.fetch = (input, init) => given(input, init); // it must not be called as a method
    this.headers = o.token === undefined ? {} : { authorization: `Bearer ${o.token}` };
  }

  /** Makes a call and reads the JSON of its answer. */
  async json<T>(q: Call, o?: CallOptions): Promise<T> {
    return parse<T>(q, await this.call(q, o));
  }

  async call(q: Call, o: CallOptions = {}): Promise<Answer> {
    bounded("timeout", o.timeout, this.timeout, 1, 3_600_000);
    const sent = { ...q, text: q.body === undefined ? undefined : JSON.stringify(q.body) }; // what it throws is no failure of the server
    return this.repeat(sent, o, () => this.attempt(sent, o));
  }

  /** Repeats an attempt as long as that is safe and allowed. */
  async repeat<T>(q: Call, o: CallOptions, attempt: () => Promise<T>): Promise<T> {
    parameters(q); // what it throws is no failure of the server
    let open = false; // an attempt may have been carried out
    for (let n = 0; ; n++) {
      try {
        return await attempt();
      } catch (e) {
        if (!(e instanceof LapseError)) throw e;
        open ||= e.outcomeUnknown;
        const pause = this.pause(n, e);
        if (n >= this.retries || !e.retryable || pause === undefined) {
          throw open && isHarmless(e.code) ? asUnknown(e, q) : e;
        }
        this.onRepeat?.({ method: q.method, path: q.path, failed: n + 1, pause, error: e });
        await sleep(pause, o.signal);
      }
    }
  }

  /** How long to wait before the next attempt: what the server asks for, or longer with each attempt. A random part keeps callers from coming back all at once. */
  pause(n: number, e: LapseError | undefined): number | undefined {
    if (e && e.retryAfter > 0) {
      return e.retryAfter > this.maxWait ? undefined : e.retryAfter * (1 + Math.random() / 4);
    }
    const most = Math.min(firstPause * 2 ** Math.min(n, 10), longestPause, this.maxWait);
    return most / 2 + (Math.random() * most) / 2;
  }

  /** A pause that never gives up, for loops that wait for the server. */
  async rest(n: number, e: unknown, signal?: AbortSignal): Promise<void> {
    await sleep(this.pause(n, e instanceof LapseError ? e : undefined) ?? this.maxWait, signal);
  }

  private async attempt(q: Call, o: CallOptions): Promise<Answer> {
    const within = new Deadline((o.timeout ?? this.timeout) + (q.extra ?? 0), o.signal);
    try {
      const response = await this.send(q, within, "application/json");
      const text = await this.read(response, q);
      if ((response.status < 200 || response.status > 299) && response.status !== q.also) {
        throw problemOf(response.status, response.headers, text, q.effect === "again");
      }
      return { status: response.status, text };
    } catch (e) {
      throw broken(e, q, within, o.signal);
    } finally {
      within.end();
    }
  }

  /** Opens a stream: an answer whose body is read piece by piece. `within` bounds it. */
  async open(q: Call, within: Deadline, o: CallOptions): Promise<Response> {
    try {
      const response = await this.send(q, within, "text/event-stream, application/problem+json");
      if (response.status !== 200) {
        throw problemOf(response.status, response.headers, await this.read(response, q), false);
      }
      return response;
    } catch (e) {
      throw broken(e, q, within, o.signal);
    }
  }

  private send(q: Call, within: Deadline, accept: string): Promise<Response> {
    within.signal.throwIfAborted();
    const search = parameters(q).toString();
    const headers: Record<string, string> = { accept, ...this.headers, ...q.headers };
    if (q.text !== undefined) headers["content-type"] = "application/json";
    return this.fetch(this.base + q.path + (search && `?${search}`), {
      method: q.method,
      headers,
      body: q.text,
      signal: within.signal,
      redirect: "manual", // a POST would become a GET, and seem to succeed
      cache: "no-store",
    });
  }

  /** Reads a body of at most maxAnswer bytes. */
  private async read(response: Response, q: Call): Promise<string> {
    const reader = response.body?.getReader();
    if (!reader) return "";
    const decoder = new TextDecoder();
    let text = "";
    for (let size = 0; ; ) {
      const { done, value } = await reader.read();
      if (done) return text + decoder.decode();
      size += value.byteLength;
      if (size > this.maxAnswer) {
        await reader.cancel().catch(() => {});
        throw badAnswer(q, `is longer than ${this.maxAnswer} bytes`);
      }
      text += decoder.decode(value, { stream: true });
    }
  }
}

/** Ends after a time, or with another signal. */
export class Deadline {
  private readonly controller = new AbortController();
  private readonly forget: () => void;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** It has ended because of the time. */
  late = false;

  constructor(milliseconds: number, outer?: AbortSignal) {
    this.forget = onAbort(outer, () => this.controller.abort(outer!.reason));
    this.reset(milliseconds);
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Lets the time begin again; without one it does not end. */
  reset(milliseconds?: number): void {
    clearTimeout(this.timer);
    if (milliseconds === undefined) return;
    this.timer = setTimeout(() => {
      this.late = true;
      this.controller.abort(new Error("no answer in time"));
    }, milliseconds);
  }

  /** Ends the timer, and whatever is still read. */
  end(): void {
    clearTimeout(this.timer);
    this.forget();
  }

  abort(): void {
    this.end();
    this.controller.abort();
  }
}

const notSent = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

/** Classifies a failure. The attempt was bounded by `within`, the whole call by `outer`. */
function broken(e: unknown, q: Call, within: Deadline, outer: AbortSignal | undefined): unknown {
  if (e instanceof LapseError) return e;
  if (outer?.aborted && !within.late) return outer.reason;
  const cause = (e as { cause?: { code?: string; message?: string } }).cause;
  const nothing = q.effect === "reads" || notSent.has(cause?.code ?? "");
  const detail = within.late ? "no answer in time" : (cause?.message ?? (e as Error).message);
  return new LapseError(
    { type: "about:blank", title: nothing ? "The server cannot be reached" : "The outcome is unknown", status: 0, detail },
    { code: nothing ? "unreachable" : "outcome_unknown", retryable: nothing || q.effect !== "again", cause: e },
  );
}

function asUnknown(e: LapseError, q: Call): LapseError {
  return new LapseError(
    { type: e.type, title: "The outcome is unknown", status: e.status, detail: `after an earlier attempt: ${e.message}`, id: e.id, ids: e.ids },
    { code: "outcome_unknown", retryAfter: e.retryAfter, retryable: q.effect !== "again", cause: e },
  );
}

export function badAnswer(q: Call, why: string, cause?: unknown): LapseError {
  return new LapseError({ type: "about:blank", title: "The answer cannot be read", status: 0, detail: `the answer to ${q.method} ${q.path} ${why}` }, { code: "bad_answer", cause });
}

export function parse<T>(q: Call, a: Answer): T {
  try {
    return JSON.parse(a.text) as T;
  } catch (e) {
    throw badAnswer(q, "is not JSON", e);
  }
}

const listeners = new WeakMap<AbortSignal, Set<() => void>>();

/**
 * Calls f when a signal ends, or at once if it has ended, and returns what undoes this. All calls
 * share one listener of the signal: platforms warn of a signal with many.
 */
export function onAbort(signal: AbortSignal | undefined, f: () => void): () => void {
  if (!signal) return () => {};
  if (signal.aborted) {
    f();
    return () => {};
  }
  let all = listeners.get(signal);
  if (!all) {
    const made = (all = new Set());
    listeners.set(signal, made);
    signal.addEventListener("abort", () => [...made].forEach((one) => one()), { once: true });
  }
  const set = all;
  const own = (): void => f();
  set.add(own);
  return () => set.delete(own);
}

/** Waits. It fails with the signal's reason when that ends first. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      forget();
      resolve();
    }, milliseconds);
    const forget = onAbort(signal, () => {
      clearTimeout(timer);
      reject(signal!.reason as Error);
    });
  });
}

/** Checks an option; undefined stands for its default. */
export function bounded(name: string, given: number | undefined, usual: number, low: number, high: number): number {
  const n = given ?? usual;
  if (!Number.isFinite(n) || n < low || n > high) throw new RangeError(`option ${name} must be from ${low} to ${high}`);
  return n;
}

const units: Record<string, number> = { ns: 1e-6, us: 1e-3, "µs": 1e-3, "μs": 1e-3, ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Reads a span of time into milliseconds. */
export function milliseconds(name: string, span: string | number): number {
  if (typeof span === "number" && !Number.isNaN(span)) return span;
  let rest = String(span);
  let sum = 0;
  for (let part = /^(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h|d)/.exec(rest); part; part = /^(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h|d)/.exec(rest)) {
    sum += Number(part[1]) * units[part[2]!]!;
    rest = rest.slice(part[0].length);
  }
  if (rest !== "" || span === "") {
    if (span === "0") return 0;
    throw new TypeError(`${name} must be a duration such as "90s", "30m" or "1d12h", or a number of milliseconds`);
  }
  return sum;
}

/** The query of a call. An empty text is refused: a server that took it for one that is not given would select everything. */
function parameters(q: Call): URLSearchParams {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(q.query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one === "") throw new TypeError(`${name} must not be empty; undefined leaves it out`);
      if (one !== undefined && one !== null) query.append(name, one instanceof Date ? one.toISOString() : String(one));
    }
  }
  return query;
}
