import type { FieldFault } from "./types.js";

/** What a LapseError is made of: the fields of a problem document, RFC 9457. */
export interface ProblemFields {
  type: string;
  title: string;
  status: number;
  detail?: string;
  errors?: FieldFault[];
  id?: string;
  ids?: string[];
  done?: number;
  recorded?: boolean;
  request_id?: string;
}

/**
 * A call that failed. Compare `code`: the last part of the problem's type, such as "not_found",
 * "id_taken" or "invalid". The client has three of its own: "unreachable" (nothing has happened),
 * "outcome_unknown" (which the server answers too: it may have happened), and "bad_answer" (what
 * came is no answer of Lapse).
 */
export class LapseError extends Error {
  /** The problem's type, such as "/problems/not_found"; "about:blank" if no problem was answered. */
  readonly type: string;
  readonly code: string;
  /** The HTTP status; 0 without an answer. */
  readonly status: number;
  readonly title: string;
  readonly detail: string;
  /** The fields that are wrong. */
  readonly errors: FieldFault[];
  /** The id, or the ids of a batch, with which repeating the call is safe. */
  readonly id?: string;
  readonly ids?: string[];
  /** How many tasks were dealt with before the failure, where a call is done in pieces. */
  readonly done?: number;
  readonly recorded?: boolean;
  readonly requestId?: string;
  /** Milliseconds that the server asks to wait; 0 if it does not say. */
  readonly retryAfter: number;
  /** The same call may succeed later, and repeating it is safe. */
  readonly retryable: boolean;

  constructor(p: ProblemFields, more: { code?: string; retryAfter?: number; retryable?: boolean; cause?: unknown } = {}) {
    super(messageOf(p), more.cause === undefined ? undefined : { cause: more.cause });
    this.name = "LapseError";
    this.type = p.type;
    this.code = more.code ?? p.type.slice(p.type.lastIndexOf("/") + 1);
    this.status = p.status;
    this.title = p.title;
    this.detail = p.detail ?? "";
    this.errors = p.errors ?? [];
    this.id = p.id;
    this.ids = p.ids;
    this.done = p.done;
    this.recorded = p.recorded;
    this.requestId = p.request_id;
    this.retryAfter = more.retryAfter ?? 0;
    this.retryable = more.retryable ?? false;
  }

  /** Whether the call may have been carried out although it failed. */
  get outcomeUnknown(): boolean {
    return this.code === "outcome_unknown";
  }
}

function messageOf(p: ProblemFields): string {
  if (p.errors && p.errors.length > 0) {
    return `${p.title}: ${p.errors.map((e) => `${e.field} ${e.problem}`).join("; ")}`;
  }
  if (!p.detail || p.detail.toLowerCase() === p.title.toLowerCase()) return p.title;
  return p.detail.toLowerCase().startsWith(p.title.toLowerCase()) ? p.detail : `${p.title}: ${p.detail}`;
}

const nothingHappened = new Set([
  "overloaded", "quota", "ledger_unavailable", "replaying", "shutting_down", "starting", "draining", "node_unavailable", "busy",
]);

/** Whether an answer says that nothing has happened, and that it may be otherwise later. */
export function isHarmless(code: string): boolean {
  return code === "unreachable" || nothingHappened.has(code);
}

const longestText = 1024;

/** Reads an answer that is no success. `again`: a repeated call might have its effect twice. */
export function problemOf(status: number, headers: Headers, text: string, again: boolean): LapseError {
  let p: ProblemFields | undefined;
  try {
    const read: unknown = JSON.parse(text);
    if (typeof read === "object" && read !== null && typeof (read as ProblemFields).type === "string") p = read as ProblemFields;
  } catch {
    // It comes from another server, such as a proxy.
  }
  const retryAfter = retryAfterOf(headers.get("retry-after"));
  if (!p) {
    p = { type: "about:blank", title: `HTTP status ${status}`, status, detail: text.slice(0, longestText) };
    // A proxy may have passed the request on before its connection broke.
    const code = status === 429 ? "overloaded" : status >= 500 ? "outcome_unknown" : "bad_answer";
    return new LapseError(p, { code, retryAfter, retryable: code === "overloaded" || (code === "outcome_unknown" && !again) });
  }
  p.status = status;
  let code = p.type.slice(p.type.lastIndexOf("/") + 1);
  if (code === "internal") code = "outcome_unknown";
  return new LapseError(p, { code, retryAfter, retryable: isHarmless(code) || (code === "outcome_unknown" && !again) });
}

function retryAfterOf(text: string | null): number {
  if (text === null) return 0;
  if (/^\d{1,9}$/.test(text)) return Number(text) * 1000;
  const at = Date.parse(text);
  return Number.isNaN(at) ? 0 : Math.max(at - Date.now(), 0);
}
