import { type Call, type CallOptions, Caller, type ClientOptions, milliseconds, parse, wholeTopic } from "./call.js";
import { LapseError } from "./errors.js";
import { openEvents } from "./events.js";
import { type RedriveOptions, type RedrivenTopic, redrive } from "./redrive.js";
import type {
  Acted, Actions, Alive, AuditPage, AuditQuery, BatchAnswer, CountQuery, DeadQuery, DeadReasons, DeadReasonsQuery, Delivery, Event, EventQuery, Forecast, ForecastQuery, FoundPart, GroupCancelled, GroupQuery,
  Diagnosis, History, HistoryQuery, Move, NewTask, Node, Purged, Readiness, Requeue, Requeued, Reserve, ScheduledTask, ScopeQuery, SearchQuery, Settlement, Span,
  Stats, StatsQuery, Task, TaskCounts, TaskPage, TaskQuery, TopicAnswer, TopicChange, TopicInfo, TopicList, TopicQuery,
  TopicSettings, Undone, Wave, WaveQuery,
} from "./types.js";
import { newId } from "./uuid.js";

/** A revision guards a change of a topic's settings: it is refused (precondition_failed) if they have another one. 0: there are none. */
export interface RevisionOptions extends CallOptions {
  revision?: number;
}

/**
 * Calls one server. Every call fails with a LapseError, or with the reason of its signal.
 *
 * A call is repeated where that is safe: after an answer that says that nothing has happened, and
 * after a lost answer if a second request changes nothing more. So tasks without an id get one
 * before they are sent.
 */
export class Client {
  /** For package-internal use. */
  readonly caller: Caller;

  constructor(options: ClientOptions | string) {
    this.caller = new Caller(typeof options === "string" ? { url: options } : options);
  }

  // Tasks.

  /** Has a task delivered when it is due. It is recorded once the promise is fulfilled. */
  async schedule(task: NewTask, o?: CallOptions): Promise<ScheduledTask> {
    const body = this.named(task);
    try {
      return await this.created("POST", "/v1/tasks", body, body.id === undefined ? "again" : "same", o);
    } catch (e) {
      throw withIds(e, body.id === undefined ? undefined : [body.id], false);
    }
  }

  /** Schedules up to 10,000 tasks with one request. Each is taken or refused by itself: see `errors` of the answer. */
  async scheduleBatch(tasks: NewTask[], o?: CallOptions): Promise<BatchAnswer> {
    const body = tasks.map((t) => this.named(t));
    const safe = body.every((t) => t.id !== undefined);
    try {
      return await this.caller.json({ method: "POST", path: "/v1/tasks/batch", body, effect: safe ? "same" : "again" }, o);
    } catch (e) {
      throw withIds(e, safe ? body.map((t) => t.id!) : undefined, true);
    }
  }

  /** Schedules a task in place of the pending or ready one with its id, if there is one. */
  async replace(task: NewTask & { id: string }, o?: CallOptions): Promise<ScheduledTask> {
    const { id, ...body } = task;
    return this.created("PUT", path`/v1/tasks/${id}`, body, "same", o);
  }

  async get(id: string, o?: CallOptions): Promise<Task> {
    return this.caller.json({ method: "GET", path: path`/v1/tasks/${id}`, effect: "reads" }, o);
  }

  /** Moves the deadline of a task: by a span from now, or as a Move says, which may give it another payload or delivery in the same step. */
  async reschedule(id: string, move: Span | Move, o?: CallOptions): Promise<Task> {
    const body = typeof move === "object" ? move : { delay: move };
    return this.caller.json({ method: "PATCH", path: path`/v1/tasks/${id}`, body, effect: "same" }, o);
  }

  /** Makes sure that a task is not delivered any more. A dead one is deleted. */
  async cancel(id: string, o?: CallOptions): Promise<void> {
    await this.caller.call({ method: "DELETE", path: path`/v1/tasks/${id}`, effect: "same" }, o);
  }

  /** Makes a pending task due now. */
  async fire(id: string, o?: CallOptions): Promise<Task> {
    return this.caller.json({ method: "POST", path: path`/v1/tasks/${id}/fire`, effect: "again" }, o);
  }

  /** Holds the countdown of a task: it keeps the time that is left until it is resumed. */
  async hold(id: string, o?: CallOptions): Promise<Task> {
    return this.caller.json({ method: "POST", path: path`/v1/tasks/${id}/hold`, effect: "same" }, o);
  }

  async resume(id: string, o?: CallOptions): Promise<Task> {
    return this.caller.json({ method: "POST", path: path`/v1/tasks/${id}/resume`, effect: "same" }, o);
  }

  /** All tasks that a query selects, soonest first, page by page. */
  all(query: TaskQuery = {}, o?: CallOptions): AsyncGenerator<Task, void, undefined> {
    return pages(query, (q) => this.list(q, o), (p) => p.tasks);
  }

  /** One page of all. It may be empty although there are more: then it has a next_cursor. */
  async list(query: TaskQuery = {}, o?: CallOptions): Promise<TaskPage> {
    return this.caller.json({ method: "GET", path: "/v1/tasks", query, effect: "reads" }, o);
  }

  /** Does one thing with up to 1,000 tasks. Repeat it with cursor set to next_cursor until there is none, or use actAll. */
  async act(actions: Actions, o?: CallOptions): Promise<Acted> {
    const once = !["fire", "requeue", "delete"].includes(actions.action) || !!actions.cursor || !!actions.dry_run;
    return this.caller.json({ method: "POST", path: "/v1/tasks/actions", body: actions, effect: once ? "same" : "again", extra: wholeTopic }, o);
  }

  /** Does one thing with all tasks that a filter selects, and yields the answer of each call. */
  actAll(actions: Actions, o?: CallOptions): AsyncGenerator<Acted, void, undefined> {
    return pages(actions, (a) => this.act(a, o), (answer) => [answer]);
  }

  // Groups.

  /** All tasks of a group, of whatever topics, soonest first. */
  group(group: string, query: GroupQuery = {}, o?: CallOptions): AsyncGenerator<Task, void, undefined> {
    return pages(query, async (q) => this.caller.json<TaskPage>({ method: "GET", path: path`/v1/groups/${group}`, query: q, effect: "reads" }, o), (p) => p.tasks);
  }

  /** Cancels all pending and ready tasks of a group. */
  async cancelGroup(group: string, o?: CallOptions): Promise<GroupCancelled> {
    return this.caller.json({ method: "DELETE", path: path`/v1/groups/${group}`, effect: "again", extra: wholeTopic }, o);
  }

  // Topics.

  topics(query: TopicQuery = {}, o?: CallOptions): AsyncGenerator<TopicInfo, void, undefined> {
    return pages(query, (q) => this.listTopics(q, o), (p) => p.topics);
  }

  /** One page of topics. */
  async listTopics(query: TopicQuery = {}, o?: CallOptions): Promise<TopicList> {
    return this.caller.json({ method: "GET", path: "/v1/topics", query, effect: "reads" }, o);
  }

  async topic(topic: string, query: ScopeQuery = {}, o?: CallOptions): Promise<TopicAnswer> {
    return this.caller.json({ method: "GET", path: path`/v1/topics/${topic}`, query, effect: "reads" }, o);
  }

  /** Replaces all settings of a topic: what is left out gets its default. */
  async setTopic(topic: string, settings: TopicSettings, o?: RevisionOptions & { replace?: boolean }): Promise<TopicInfo> {
    return this.caller.json(guarded({ method: "PUT", path: path`/v1/topics/${topic}`, body: settings, query: { replace: o?.replace }, effect: "same" }, o), o);
  }

  /** Changes some settings of a topic; null gives a field its default. */
  async changeTopic(topic: string, change: TopicChange, o?: RevisionOptions): Promise<TopicInfo> {
    return this.caller.json(guarded({ method: "PATCH", path: path`/v1/topics/${topic}`, body: change, effect: "same" }, o), o);
  }

  /** Forgets the settings of a topic without tasks. */
  async deleteTopic(topic: string, o?: RevisionOptions): Promise<void> {
    await this.caller.call(guarded({ method: "DELETE", path: path`/v1/topics/${topic}`, effect: "again" }, o), o);
  }

  /** Makes the pending and ready tasks of a topic dead, and forgets its settings. Deliveries are left to their receivers. */
  async killTopic(topic: string, o?: RevisionOptions): Promise<void> {
    await this.caller.call(guarded({ method: "DELETE", path: path`/v1/topics/${topic}`, query: { force: true }, effect: "again", extra: wholeTopic }, o), o);
  }

  async pauseTopic(topic: string, o?: CallOptions): Promise<void> {
    await this.caller.call({ method: "POST", path: path`/v1/topics/${topic}/pause`, effect: "same" }, o);
  }

  async resumeTopic(topic: string, o?: CallOptions): Promise<void> {
    await this.caller.call({ method: "POST", path: path`/v1/topics/${topic}/resume`, effect: "same" }, o);
  }

  /** Cancels all pending and ready tasks of a topic, or of all topics whose names begin so ("order.*"). */
  async purge(topic: string, o?: CallOptions): Promise<Purged> {
    return this.caller.json({ method: "DELETE", path: path`/v1/topics/${topic}/tasks`, effect: "again", extra: wholeTopic }, o);
  }

  // Receivers.

  /** Takes tasks that are ready, and waits for the first one as long as `wait` says. Worker does all of this by itself. */
  async reserve(topic: string, reserve: Reserve = {}, o?: CallOptions): Promise<Delivery[]> {
    const extra = Math.max(milliseconds("wait", reserve.wait ?? 0), 0);
    const q: Call = { method: "POST", path: path`/v1/topics/${topic}/reserve`, body: reserve, effect: "again", extra };
    return (await this.caller.json<{ tasks: Delivery[] }>(q, o)).tasks;
  }

  /** Finishes deliveries: the tasks are done. Up to 1,000 receipts, here and below; each has its own outcome. */
  async ack(receipts: string | string[], o?: CallOptions): Promise<Settlement> {
    return this.settle("ack", receipts, {}, "same", o);
  }

  /** Gives back deliveries that were not begun (`POST /v1/receipts/return`): their tasks are ready again at once, and the attempt does not count. */
  async giveBack(receipts: string | string[], o?: CallOptions): Promise<Settlement> {
    return this.settle("return", receipts, {}, "again", o);
  }

  /** Ends deliveries without success: another attempt follows after the delay, or after the topic's backoff. */
  async release(receipts: string | string[], more: { delay?: Span; reason?: string } = {}, o?: CallOptions): Promise<Settlement> {
    return this.settle("release", receipts, more, "again", o);
  }

  /** Begins the leases of deliveries again. */
  async extend(receipts: string | string[], more: { lease?: Span } = {}, o?: CallOptions): Promise<Settlement> {
    return this.settle("extend", receipts, more, "same", o);
  }

  /** Gives deliveries up: the tasks are dead. */
  async bury(receipts: string | string[], more: { reason?: string } = {}, o?: CallOptions): Promise<Settlement> {
    return this.settle("bury", receipts, more, "again", o);
  }

  // Dead tasks.

  /** All dead tasks of a topic that a query selects, the longest dead first, page by page. */
  allDead(topic: string, query: DeadQuery = {}, o?: CallOptions): AsyncGenerator<Task, void, undefined> {
    return pages(query, (q) => this.listDead(topic, q, o), (p) => p.tasks);
  }

  /** One page of allDead. */
  async listDead(topic: string, query: DeadQuery = {}, o?: CallOptions): Promise<TaskPage> {
    return this.caller.json({ method: "GET", path: path`/v1/topics/${topic}/dead`, query, effect: "reads" }, o);
  }

  /** Why tasks are dead, and how many died of each reason: those of a topic, or of all. */
  async deadReasons({ topic, ...query }: DeadReasonsQuery = {}, o?: CallOptions): Promise<DeadReasons> {
    const from = topic === undefined ? "/v1/dead/reasons" : path`/v1/topics/${topic}/dead/reasons`;
    return this.caller.json({ method: "GET", path: from, query, effect: "reads" }, o);
  }

  async requeueDead(topic: string, which: Requeue, o?: CallOptions): Promise<Requeued> {
    return this.caller.json({ method: "POST", path: path`/v1/topics/${topic}/dead/requeue`, body: which, effect: "again", extra: wholeTopic }, o);
  }

  /**
   * Requeues dead tasks slowly: so many a second, topic by topic. Of each topic the first ones come
   * back first. Where all of them fail again, or none is delivered in time, the others stay dead. It
   * yields what has become of a topic after each step; a loop that is left leaves the others dead.
   */
  redrive(options: RedriveOptions = {}, o?: CallOptions): AsyncGenerator<RedrivenTopic, void, undefined> {
    return redrive(this, options, o);
  }

  async deleteDead(topic: string, ids: string[], o?: CallOptions): Promise<void> {
    await this.caller.call({ method: "DELETE", path: path`/v1/topics/${topic}/dead`, body: { ids }, effect: "same", extra: wholeTopic }, o);
  }

  async deleteAllDead(topic: string, o?: CallOptions): Promise<void> {
    // A repeated call would also delete tasks that have died since.
    await this.caller.call({ method: "DELETE", path: path`/v1/topics/${topic}/dead`, body: { all: true }, effect: "again", extra: wholeTopic }, o);
  }

  // The server.

  async nodes(o?: CallOptions): Promise<Node[]> {
    return (await this.caller.json<{ nodes: Node[] }>({ method: "GET", path: "/v1/nodes", effect: "reads" }, o)).nodes;
  }

  async node(node: string, o?: CallOptions): Promise<Node> {
    return this.caller.json({ method: "GET", path: path`/v1/nodes/${node}`, effect: "reads" }, o);
  }

  /** Has a node hand over its tasks and end. It returns when that has begun. */
  async drainNode(node: string, o?: CallOptions): Promise<void> {
    await this.caller.call({ method: "POST", path: path`/v1/nodes/${node}/drain`, effect: "same" }, o);
  }

  async stats(query: StatsQuery = {}, o?: CallOptions): Promise<Stats> {
    return this.caller.json({ method: "GET", path: "/v1/stats", query, effect: "reads" }, o);
  }

  /** What is wrong, the causes first. */
  async diagnosis(o?: CallOptions): Promise<Diagnosis> {
    return this.caller.json({ method: "GET", path: "/v1/diagnosis", effect: "reads" }, o);
  }

  /** Who did what, the latest first. */
  async audit(query: AuditQuery = {}, o?: CallOptions): Promise<AuditPage> {
    return this.caller.json({ method: "GET", path: "/v1/audit", query, effect: "reads" }, o);
  }

  /**
   * Takes back an act that the log of actions names, if nothing has changed since. Otherwise it fails
   * with precondition_failed, and with not_undone where the log does not have what it takes.
   */
  async undo(act: string, o?: CallOptions): Promise<Undone> {
    return this.caller.json({ method: "POST", path: path`/v1/audit/${act}/undo`, effect: "again" }, o);
  }

  async history(query: HistoryQuery = {}, o?: CallOptions): Promise<History> {
    return this.caller.json({ method: "GET", path: "/v1/history", query, effect: "reads" }, o);
  }

  /** Counts tasks by topic and state, those that a list with the same query has. */
  async count(query: CountQuery = {}, o?: CallOptions): Promise<TaskCounts> {
    return this.caller.json({ method: "GET", path: "/v1/counts", query, effect: "reads" }, o);
  }

  /**
   * Finds tasks in all states, groups and topics by a part of their names: one part of the search,
   * which goes on with `next_cursor` until there is none.
   */
  async search(query: SearchQuery, o?: CallOptions): Promise<FoundPart> {
    return this.caller.json({ method: "GET", path: "/v1/search", query, effect: "reads" }, o);
  }

  /** The parts of a search to its end. A task or a group may be in several. */
  searches(query: SearchQuery, o?: CallOptions): AsyncGenerator<FoundPart, void, undefined> {
    return pages(query, (q) => this.search(q, o), (part) => [part]);
  }

  async forecast(query: ForecastQuery = {}, o?: CallOptions): Promise<Forecast> {
    return this.caller.json({ method: "GET", path: "/v1/forecast", query, effect: "reads" }, o);
  }

  async wave(query: WaveQuery, o?: CallOptions): Promise<Wave> {
    return this.caller.json({ method: "GET", path: "/v1/waves", query, effect: "reads" }, o);
  }

  /** Asks once whether the server's scheduler runs and moves. That it does not is no failure: see `status`. */
  async alive(o?: CallOptions): Promise<Alive> {
    return this.caller.json({ method: "GET", path: "/healthz", effect: "reads", also: 503 }, o);
  }

  /** Asks once whether the server is ready. That it is not is no failure. */
  async ready(o?: CallOptions): Promise<Readiness> {
    return this.caller.json({ method: "GET", path: "/readyz", effect: "reads", also: 503 }, o);
  }

  /**
   * Opens a stream of the events of tasks, beginning with those after the promise is fulfilled. It
   * goes on until the loop is left, the signal ends, or it fails; events until the next stream are
   * missed.
   */
  async events(query: EventQuery = {}, o: CallOptions = {}): Promise<AsyncGenerator<Event, void, undefined>> {
    return openEvents(this.caller, query, o);
  }

  private named(task: NewTask): NewTask {
    return task.id === undefined && this.caller.retries > 0 ? { ...task, id: newId() } : task;
  }

  private async created(method: string, to: string, body: unknown, effect: "same" | "again", o?: CallOptions): Promise<ScheduledTask> {
    const q: Call = { method, path: to, body, effect };
    const a = await this.caller.call(q, o);
    return { ...parse<Task>(q, a), created: a.status !== 200 };
  }

  private async settle(verb: string, receipts: string | string[], more: object, effect: "same" | "again", o?: CallOptions): Promise<Settlement> {
    const body = { receipts: typeof receipts === "string" ? [receipts] : receipts, ...more };
    return this.caller.json({ method: "POST", path: `/v1/receipts/${verb}`, body, effect }, o);
  }
}

/** Puts names into a path. With an empty name it would be the path of another route. */
function path(parts: TemplateStringsArray, ...names: string[]): string {
  return parts.reduce((all, part, i) => {
    const name = names[i - 1];
    if (typeof name !== "string" || name === "" || name === "." || name === "..") throw new TypeError("a name must be given");
    return all + encodeURIComponent(name) + part;
  });
}

function guarded(q: Call, o?: RevisionOptions): Call {
  if (o?.revision === undefined) return q;
  // A repeated call would find its own new revision.
  return { ...q, effect: "again", headers: { "if-match": `"${o.revision}"` } };
}

async function* pages<Q extends { cursor?: string }, P extends { next_cursor?: string }, T>(query: Q, page: (q: Q) => Promise<P>, items: (p: P) => T[]): AsyncGenerator<T, void, undefined> {
  for (let q = query; ; ) {
    const p = await page(q);
    yield* items(p);
    if (!p.next_cursor) return;
    q = { ...q, cursor: p.next_cursor };
  }
}

/** Adds the ids with which a call may be repeated to the failure that leaves its outcome open. */
function withIds(e: unknown, ids: string[] | undefined, batch: boolean): unknown {
  if (!(e instanceof LapseError) || !e.outcomeUnknown || !ids || e.id || e.ids) return e;
  const { type, title, status, detail, errors, done, recorded, requestId } = e;
  const named = batch ? { ids } : { id: ids[0]! };
  return new LapseError({ type, title, status, detail, errors, done, recorded, request_id: requestId, ...named }, { code: e.code, retryAfter: e.retryAfter, retryable: e.retryable, cause: e.cause });
}
