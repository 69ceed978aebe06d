import { type Call, type CallOptions, type Caller, Deadline, badAnswer } from "./call.js";
import { LapseError } from "./errors.js";
import type { Event, EventQuery } from "./types.js";

/** A server writes something every 15 seconds. */
const silence = 45_000;
const longEvent = 1 << 20;

/**
 * Opens a stream of events, and yields them. The stream is open once the promise is fulfilled:
 * what happens from then on is in it.
 */
export async function openEvents(caller: Caller, query: EventQuery, o: CallOptions): Promise<AsyncGenerator<Event, void, undefined>> {
  const q: Call = { method: "GET", path: "/v1/events", query, effect: "reads" };
  const [response, within] = await caller.repeat(q, o, async () => {
    const within = new Deadline(o.timeout ?? 10_000, o.signal);
    try {
      const response = await caller.open(q, within, o);
      if (!response.body || !(response.headers.get("content-type") ?? "").startsWith("text/event-stream")) throw badAnswer(q, "is no stream of events");
      within.reset();
      return [response, within] as const;
    } catch (e) {
      within.abort();
      throw e;
    }
  });
  const stream = readEvents(q, response.body!, within, o.signal);
  return stream;
}

async function* readEvents(q: Call, body: ReadableStream<Uint8Array>, within: Deadline, outer: AbortSignal | undefined): AsyncGenerator<Event, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let data = "";
  let number = 0;
  try {
    for (;;) {
      within.reset(silence);
      const { done, value } = await reader.read();
      within.reset();
      if (done) throw ended("shutting_down", "the server has ended the event stream");
      text += decoder.decode(value, { stream: true });
      for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n")) {
        const line = text.slice(0, at).replace(/\r$/, "");
        text = text.slice(at + 1);
        if (line === "") {
          if (data !== "") yield { ...(parseEvent(q, data) as Event), number };
          data = "";
        } else if (line.startsWith("data:")) {
          data += (data && "\n") + line.slice(5).replace(/^ /, "");
        } else if (line.startsWith("id:")) {
          number = Number(line.slice(3).trim()) || 0;
        }
      }
      if (text.length + data.length > longEvent) throw badAnswer(q, "has an event that is too long");
    }
  } catch (e) {
    if (e instanceof LapseError) throw e;
    if (outer?.aborted && !within.late) throw outer.reason;
    throw ended("unreachable", within.late ? "the server has fallen silent" : `the event stream broke: ${(e as Error).message}`, e);
  } finally {
    within.abort();
    await reader.cancel().catch(() => {});
  }
}

function parseEvent(q: Call, data: string): unknown {
  try {
    return JSON.parse(data);
  } catch (e) {
    throw badAnswer(q, "has an event that is not JSON", e);
  }
}

function ended(code: string, detail: string, cause?: unknown): LapseError {
  return new LapseError({ type: "about:blank", title: "The event stream has ended", status: 0, detail }, { code, retryable: true, cause });
}
