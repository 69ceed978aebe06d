export { type CallOptions, type ClientOptions, type Repetition } from "./call.js";
export { Client, type RevisionOptions } from "./client.js";
export { LapseError, type ProblemFields } from "./errors.js";
export { type RedriveOptions, type RedrivenTopic } from "./redrive.js";
export { newId } from "./uuid.js";
export { WebhookError, verifyWebhook, type Webhook, type WebhookRequest } from "./webhook.js";
export { Bury, Retry, Worker, type HandlerContext, type WorkerOptions, type WorkerStats } from "./worker.js";
export type * from "./types.js";
export type { components, operations, paths } from "./openapi.js";
