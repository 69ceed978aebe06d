import { milliseconds } from "./call.js";
import type { Span } from "./types.js";

/** Thrown by a handler: another attempt cannot mend this, and the task becomes dead. */
export class Kill extends Error {
  constructor(reason: string, options?: { cause?: unknown }) {
    super(reason, options);
    this.name = "Kill";
  }
}

/** Thrown by a handler: the next attempt starts after the delay, in place of the topic's backoff. */
export class RetryAfter extends Error {
  readonly delay: number;

  constructor(delay: Span, reason: string, options?: { cause?: unknown }) {
    super(reason, options);
    this.name = "RetryAfter";
    this.delay = Math.min(Math.max(milliseconds("delay", delay), 0), 3650 * 86_400_000);
  }
}

/** How a delivery is to be settled. */
export interface Judgement {
  verb: "ack" | "giveBack" | "release" | "bury";
  reason?: string;
  /** Of release, in milliseconds. Left out: the topic's backoff. */
  delay?: number;
}

/** Reads a handler's failure. */
export function judge(e: unknown, onFailure: "release" | "bury"): Judgement {
  const reason = textOf(e);
  if (e instanceof Kill) return { verb: "bury", reason };
  if (e instanceof RetryAfter) return Number.isFinite(e.delay) ? { verb: "release", reason, delay: e.delay } : { verb: "release", reason };
  return { verb: onFailure, reason };
}

const longestReason = 1024;

function textOf(e: unknown): string {
  let text: string;
  try {
    text = String(e instanceof Error ? e.message || e.name : e);
  } catch {
    text = "a value without a text was thrown";
  }
  // The server refuses half of a surrogate pair.
  return text.slice(0, longestReason).replace(/\p{Surrogate}/gu, "\ufffd");
}
