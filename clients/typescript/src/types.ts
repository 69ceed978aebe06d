import type { components, operations } from "./openapi.js";

type Schemas = components["schemas"];
type Query<Op extends keyof operations> = NonNullable<operations[Op]["parameters"]["query"]>;
type Times<T> = { [K in keyof T]: K extends "due_at" ? T[K] | Date : T[K] };

/** A time in a request: RFC 3339 text or a Date. */
export type Time = string | Date;
/** A span of time: text such as "30m", "90s" or "1d12h", or milliseconds. */
export type Span = string | number;

/** A task to schedule. Only `topic` is required. */
export type NewTask = Times<Schemas["NewTask"]>;
/** A change of a task: what is left out stays. */
export type Move = Times<Schemas["TaskChange"]>;
/** A task as the server shows it. */
export type Task = Schemas["Task"];
/** A task, and whether the call has created it. False: it was there before. */
export type ScheduledTask = Task & { created: boolean };
export type Attempt = Schemas["Attempt"];
export type TaskPage = Schemas["TaskPage"];
export type BatchAnswer = Schemas["BatchAnswer"];
/** Many tasks, and what is to be done with each. */
export type Actions = Times<Schemas["Actions"]>;
export type Acted = Schemas["Acted"];
export type GroupCancelled = Schemas["GroupCancelled"];
/** A task that was reserved, with the receipt that settles this delivery. */
export type Delivery = Schemas["ReservedTask"];
export type Reserve = Schemas["Reserve"];
export type Settlement = Schemas["SettleAnswer"];
/** Settings of a topic. What is left out gets its default. */
export type TopicSettings = Schemas["NewTopic"];
/** A merge patch of settings: null gives a field its default. */
export type TopicChange = { [K in keyof TopicSettings]?: K extends "retry" | "delivery" | "rate" ? Record<string, unknown> | null : TopicSettings[K] | null };
export type TopicInfo = Schemas["Topic"];
export type TopicAnswer = Schemas["TopicAnswer"];
export type TopicList = Schemas["TopicList"];
export type Purged = Schemas["Purged"];
/** Which dead tasks come back, when (now, unless it is said), and what a single one has from now on. */
export type Requeue = ({ ids: string[]; all?: never } | { all: true; ids?: never }) & { delay?: Span; due_at?: Time; payload?: unknown; headers?: Record<string, string>; delivery?: NewTask["delivery"] };
export type Requeued = Schemas["Requeued"];
export type Node = Schemas["Node"];
export type Stats = Schemas["Stats"];
export type Diagnosis = Schemas["Diagnosis"];
export type AuditPage = Schemas["AuditPage"];
export type Undone = Schemas["Undone"];
export type History = Schemas["History"];
export type Forecast = Schemas["Forecast"];
export type TaskCounts = Schemas["TaskCounts"];
export type FoundPart = Schemas["FoundPart"];
export type Wave = Schemas["Wave"];
export type DeadReasons = Schemas["DeadReasons"];
export type Alive = Schemas["Alive"];
export type Readiness = Schemas["Readiness"];
export type FieldFault = Schemas["FieldFault"];
/** What happened to a task, or to the stream. `number` counts the events of a stream from 1, lost ones included. */
export type Event = (Schemas["Event"] | Schemas["EventsLost"] | Schemas["NodeChange"]) & { number: number };

export type TaskQuery = Query<"list-tasks">;
export type GroupQuery = Query<"list-group">;
export type DeadQuery = Query<"list-dead">;
export type DeadReasonsQuery = Query<"dead-reasons"> & { topic?: string };
export type TopicQuery = Query<"list-topics">;
export type EventQuery = Query<"events">;
export type ForecastQuery = Query<"forecast">;
export type CountQuery = Query<"count-tasks">;
export type SearchQuery = Query<"search">;
export type AuditQuery = Query<"audit">;
export type WaveQuery = Query<"waves">;
export type HistoryQuery = Query<"history">;
export type StatsQuery = Query<"stats">;
export type ScopeQuery = Query<"get-topic">;
