/** A request of Lapse that was verified. */
export interface Webhook<T = unknown> {
  /** The task's id. It is signed. */
  id: string;
  /** When the attempt was made. It is signed. */
  sentAt: Date;
  /** The body, which is the task's payload byte for byte. It is signed. */
  body: Uint8Array;
  /** Reads the body as JSON. */
  json(): T;
  /** What follows comes from headers that are not signed: TLS alone protects them. */
  topic?: string;
  attempt?: number;
  dueAt?: Date;
  group?: string;
  /** In async mode: what settles the delivery, by ack, release, extend or bury. */
  receipt?: string;
  leaseUntil?: Date;
}

/** What is to be verified. */
export interface WebhookRequest {
  /** The headers: a Headers, or an object such as that of node:http. */
  headers: Headers | Record<string, string | string[] | undefined>;
  /** The body as it came: not parsed and encoded again. */
  body: Uint8Array | ArrayBuffer | string;
  /** "whsec_..." texts: one, or several while a secret is being changed. */
  secrets: string | string[];
  /** How many seconds the timestamp may be off, 300 by default. */
  tolerance?: number;
  /** The present, for tests. */
  now?: Date;
}

/** The request is not from a holder of the secret, or is too old. Answer it 401. */
export class WebhookError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "WebhookError";
  }
}

const maxSignatures = 20;

/**
 * Verifies a request by Standard Webhooks. It fails with a WebhookError if no signature is one of
 * the secrets', or the timestamp is off by more than the tolerance. Signatures are compared in
 * constant time.
 */
export async function verifyWebhook<T = unknown>(request: WebhookRequest): Promise<Webhook<T>> {
  const get = (name: string): string | undefined => {
    if (request.headers instanceof Headers) return request.headers.get(name) ?? undefined;
    const found = Object.entries(request.headers).find(([key]) => key.toLowerCase() === name)?.[1];
    return Array.isArray(found) ? found.join(", ") : found;
  };
  const id = get("webhook-id");
  const timestamp = get("webhook-timestamp");
  const signatures = get("webhook-signature");
  if (!id || !timestamp || !signatures) throw new WebhookError("a header of the signature is missing");
  if (!/^\d{1,12}$/.test(timestamp)) throw new WebhookError("the timestamp is no number of seconds");
  const sent = Number(timestamp);
  const now = (request.now ?? new Date()).getTime() / 1000;
  if (Math.abs(now - sent) > (request.tolerance ?? 300)) throw new WebhookError("the timestamp is too far from the present");
  const body = bytesOf(request.body);
  const head = new TextEncoder().encode(`${id}.${timestamp}.`);
  const signed = new Uint8Array(head.length + body.length);
  signed.set(head);
  signed.set(body, head.length);
  const secrets = typeof request.secrets === "string" ? [request.secrets] : request.secrets;
  if (secrets.length === 0) throw new TypeError("secrets must have a secret");
  const given = signatures.split(" ").slice(0, maxSignatures).flatMap((s) => (s.startsWith("v1,") ? [decode(s.slice(3))] : []));
  let genuine = false;
  for (const secret of secrets) {
    const bytes = secret.startsWith("whsec_") ? decode(secret.slice(6)) : undefined;
    if (!bytes?.length) throw new TypeError("a secret must be whsec_ and base64");
    const key = await crypto.subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    for (const signature of given) {
      if (signature) genuine = (await crypto.subtle.verify("HMAC", key, signature, signed)) || genuine;
    }
  }
  if (!genuine) throw new WebhookError("no signature is valid");
  const attempt = get("lapse-attempt");
  return {
    id: id.replaceAll("%2E", "."), // an id is signed without full stops
    sentAt: new Date(sent * 1000),
    body,
    json: () => JSON.parse(new TextDecoder().decode(body)) as T,
    topic: get("lapse-topic"),
    attempt: attempt === undefined ? undefined : Number(attempt),
    dueAt: dateOf(get("lapse-due")),
    group: get("lapse-group"),
    receipt: get("lapse-receipt"),
    leaseUntil: dateOf(get("lapse-lease-until")),
  };
}

function bytesOf(body: WebhookRequest["body"]): Uint8Array<ArrayBuffer> {
  if (typeof body === "string") return new TextEncoder().encode(body);
  return new Uint8Array(body); // a copy, of which nothing else knows
}

function decode(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  } catch {
    return undefined;
  }
}

function dateOf(text: string | undefined): Date | undefined {
  return text === undefined ? undefined : new Date(text);
}
