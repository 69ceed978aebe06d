package httpapi

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
)

// metricsPath is the path of the metrics.
const metricsPath = "/metrics"

// newEngine makes a router without routes.
func (s *Server) newEngine() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.RedirectTrailingSlash = false
	g.HandleMethodNotAllowed = true
	g.UseRawPath = true // a slash that is written %2F belongs to a name
	g.Use(s.middleware)
	g.NoRoute(s.leadToPage, noRoute)
	g.NoMethod(noMethod)
	return g
}

// routes builds the router, and returns the document that describes it. Every route of the server
// stands here, with the scopes that open it.
func (s *Server) routes() (*huma.OpenAPI, error) {
	s.engine = s.newEngine()
	s.packing = newPacking(func(w http.ResponseWriter, r *http.Request) { s.serve(s.engine, w, r) })
	a := s.newAPI(s.engine)

	// The problems of any request that writes.
	writes := kinds{overloaded, outcomeUnknown, unavailable, busy, nodeAway, replaying, draining, closing}
	lists := kinds{invalid, overloaded, unavailable, nodeAway, replaying, closing}
	creates := writes.and(quota)
	bodies := kinds{malformed, tooLarge, wrongMedia, invalid, overloaded}

	// Tasks.
	add(a, route{id: "schedule-task", allow: schedulers, method: "POST", path: "/v1/tasks", summary: "Schedule a task",
		about: "A request with an id may be repeated: the same content is answered 200 with the task that exists. 202 means that only the disk of this node has the task, until Redis is back. The traceparent and tracestate of the request go to the receiver in the task's headers.",
		reads: typeOf[NewTask](), status: 201, also: []int{200, 202}, fails: bodies.and(idTaken).and(creates...)}, s.schedule)
	add(a, route{id: "list-tasks", allow: schedulers | readers, method: "GET", path: "/v1/tasks", summary: "List tasks, soonest first",
		about: "A list is no snapshot: a task that moves meanwhile may be seen twice or not at all.",
		fails: lists.and(noNode)}, s.list)
	add(a, route{id: "count-tasks", shared: true, allow: schedulers | readers, method: "GET", path: "/v1/counts", summary: "Count tasks by topic and state",
		about: "Those that the list with the same parameters would have, and without a topic also the dead or the finished of all topics. It is no snapshot. It covers the tasks of all nodes. A node that does not answer in time is named in missing.",
		fails: kinds{invalid, noNode, unavailable, closing}}, s.counts)
	add(a, route{id: "search", allow: schedulers | readers, method: "GET", path: "/v1/search", summary: "Find tasks, groups and topics by a part of their names",
		about: "Tasks in all states, the dead and the finished that are kept included, part by part: a part ends when within is over or limit is reached, and the search where there is no next_cursor. What was there from the beginning of the first part to the end of the last one is found, whatever happened to it meanwhile, if complete is true at the end. It covers all nodes. A node that does not answer in time is named in missing.",
		fails: kinds{invalid, unavailable, closing}}, s.search)
	add(a, route{id: "schedule-batch", allow: schedulers, method: "POST", path: "/v1/tasks/batch", summary: "Schedule up to 10,000 tasks",
		about: "Takes a JSON array, or with application/x-ndjson one task a line. Tasks are taken or refused one by one; text that is not JSON refuses the whole batch.",
		reads: typeOf[[]NewTask](), lines: true, fails: bodies.and(creates...)}, s.batch)
	add(a, route{id: "get-task", allow: schedulers | readers, method: "GET", path: "/v1/tasks/{id}", summary: "Show a task",
		about: "With the attempts that have failed last. A finished task is found only for as long as its topic keeps it.",
		fails: kinds{invalid, notFound, unavailable, busy, nodeAway, replaying, closing}}, s.get)
	add(a, route{id: "put-task", allow: schedulers, method: "PUT", path: "/v1/tasks/{id}", summary: "Create or replace a task",
		about: "A task that exists gets the new deadline and content in one step.",
		reads: typeOf[TaskBody](), also: []int{201}, fails: bodies.and(idTaken, delivering, dead, changed).and(creates...)}, s.put)
	add(a, route{id: "change-task", allow: schedulers, method: "PATCH", path: "/v1/tasks/{id}", summary: "Move a task's deadline, or change its payload",
		about: "What the request names changes, in one step: the old deadline is never delivered after the answer. All else stays.",
		reads: typeOf[TaskChange](), fails: bodies.and(notFound, delivering, dead, changed).and(writes...)}, s.patch)
	add(a, route{id: "cancel-task", allow: schedulers, method: "DELETE", path: "/v1/tasks/{id}", summary: "Cancel a task",
		about:  "Repeated soon after, it is answered 204 again.",
		status: 204, fails: kinds{invalid, notFound, delivering, changed}.and(writes...)}, s.cancel)
	add(a, route{id: "fire-task", allow: schedulers, method: "POST", path: "/v1/tasks/{id}/fire", summary: "Make a task due now",
		about:  "The task is delivered as soon as its receiver has room, whatever its deadline was.",
		status: 202, fails: kinds{invalid, notFound, delivering, dead, changed}.and(writes...)}, s.fire)
	add(a, route{id: "hold-task", allow: schedulers, method: "POST", path: "/v1/tasks/{id}/hold", summary: "Hold a task's countdown",
		about: "The task is not delivered until it is resumed. It keeps the time that it has left. A task that is held already stays as it is.",
		fails: kinds{invalid, notFound, delivering, dead, changed}.and(writes...)}, s.hold)
	add(a, route{id: "resume-task", allow: schedulers, method: "POST", path: "/v1/tasks/{id}/resume", summary: "Let a held countdown go on",
		about: "The task is due after the time that it had left. A task that is not held stays as it is.",
		fails: kinds{invalid, notFound, dead, changed}.and(writes...)}, s.resume)
	add(a, route{id: "act-on-tasks", allow: schedulers, method: "POST", path: "/v1/tasks/actions", summary: "Cancel, move, fire, hold, resume, requeue or delete many tasks",
		about: "Those with the ids, or those that a filter selects, at all nodes, up to 1,000 a call: repeat it with cursor set to next_cursor until there is none. " +
			"A call may find none although there are more. Each task is changed as the request for one would change it, and once at most from the first call to the last. " +
			"After a problem, repeating the call with the same cursor does the rest.",
		reads: typeOf[Actions](), fails: bodies.and(writes...)}, s.act)

	// Groups.
	add(a, route{id: "list-group", allow: schedulers | readers, method: "GET", path: "/v1/groups/{group}", summary: "List the tasks of a group, soonest first",
		about: "All but the dead. An unknown group is empty.",
		fails: lists}, s.listGroup)
	add(a, route{id: "cancel-group", allow: schedulers, method: "DELETE", path: "/v1/groups/{group}", summary: "Cancel all pending and ready tasks of a group",
		about: "Each of them definitely, but not all in one step: done in a problem counts what was cancelled before it, and repeating the request does the rest. Tasks that are being delivered are left and named.",
		fails: kinds{invalid}.and(writes...)}, s.cancelGroup)

	// Receivers that pull.
	add(a, route{id: "reserve-tasks", allow: receivers, method: "POST", path: "/v1/topics/{topic}/reserve", summary: "Reserve tasks that are ready",
		about: "Waits until there is at least one, or until wait is over. Each task is delivered to one caller, until its lease runs out.",
		reads: typeOf[Reserve](), optional: true, answers: typeOf[Reserved](), fails: bodies.and(handled, closing)}, s.reserve)
	add(a, route{id: "ack", allow: receivers, method: "POST", path: "/v1/receipts/ack", summary: "Finish deliveries: the tasks are done",
		about: "Each receipt has its own outcome: those that settled nothing are listed in errors. An ack that was answered may be repeated.",
		reads: typeOf[AckReceipts](), fails: bodies.and(closing)}, s.settle(tasks.Ack))
	add(a, route{id: "return", allow: receivers, method: "POST", path: "/v1/receipts/return", summary: "Give back deliveries that were not begun: the attempt does not count",
		about: "The tasks are ready again at once, before others with the same deadline. For receivers that stop while they hold tasks that they have not begun.",
		reads: typeOf[ReturnReceipts](), fails: bodies.and(closing)}, s.settle(tasks.Return))
	add(a, route{id: "release", allow: receivers, method: "POST", path: "/v1/receipts/release", summary: "End deliveries without success: another attempt follows",
		about: "The attempt counts. Without delay the next attempt follows after the backoff of the topic.",
		reads: typeOf[ReleaseReceipts](), fails: bodies.and(closing)}, s.settle(tasks.Release))
	add(a, route{id: "extend", allow: receivers, method: "POST", path: "/v1/receipts/extend", summary: "Begin the leases of deliveries again",
		about: "From now on, for lease, or for the lease of the topic. For receivers that are still at work.",
		reads: typeOf[ExtendReceipts](), fails: bodies.and(closing)}, s.settle(tasks.Extend))
	add(a, route{id: "bury", allow: receivers, method: "POST", path: "/v1/receipts/bury", summary: "Give deliveries up: the tasks are dead",
		about: "They get no further attempt. Dead tasks are kept for the dead_retention of their topic, and can be requeued.",
		reads: typeOf[BuryReceipts](), fails: bodies.and(closing)}, s.settle(tasks.Bury))

	// Topics.
	add(a, route{id: "list-topics", shared: true, allow: readers, method: "GET", path: "/v1/topics", summary: "List topics with settings and counts",
		about: "Page by page, by name or in another order. A topic whose figures change meanwhile may be listed twice or not at all. The counts are those of all nodes. " + reachAbout, fails: kinds{invalid}}, s.topics)
	add(a, route{id: "get-topic", allow: readers, method: "GET", path: "/v1/topics/{topic}", summary: "Show a topic",
		about: "The counts are those of all nodes. " + reachAbout,
		fails: kinds{invalid, noTopic}}, s.topic)
	add(a, route{id: "put-topic", allow: admins, method: "PUT", path: "/v1/topics/{topic}", summary: "Set a topic up",
		about: "Replaces all settings; a field that is left out gets its default. If-Match with an ETag guards against changes by others. " +
			"A delivery other than pull is not dropped while tasks wait, unless replace is true.",
		reads: typeOf[NewTopic](), fails: bodies.and(changed, dropsDelivery, nodeAway, replaying, unavailable, outcomeUnknown, closing)}, s.putTopic)
	add(a, route{id: "patch-topic", allow: admins, method: "PATCH", path: "/v1/topics/{topic}", summary: "Change some settings of a topic",
		about: "A JSON merge patch (RFC 7396): fields that are left out stay, null gives a field its default, and objects are merged. " +
			"A topic without settings gets defaults for the rest.",
		reads: typeOf[NewTopic](), media: mediaMerge, fails: bodies.and(changed, unavailable, outcomeUnknown, closing)}, s.patchTopic)
	add(a, route{id: "delete-topic", allow: admins, method: "DELETE", path: "/v1/topics/{topic}", summary: "Forget a topic's settings",
		about: "Refused while the topic has tasks, at any node, unless force is true: then those that are pending or ready become dead, a piece " +
			"at a time, and those that are being delivered are left to their receivers.",
		status: 204, fails: kinds{invalid, noTopic, inUse, changed}.and(writes...)}, s.deleteTopic)
	add(a, route{id: "pause-topic", allow: admins, method: "POST", path: "/v1/topics/{topic}/pause", summary: "Stop delivering a topic's tasks",
		about:  "New tasks are accepted, and wait. Deliveries that have begun go on.",
		status: 204, fails: kinds{invalid, unavailable, outcomeUnknown, closing}}, s.pause(true))
	add(a, route{id: "resume-topic", allow: admins, method: "POST", path: "/v1/topics/{topic}/resume", summary: "Deliver a topic's tasks again",
		about:  "Tasks that fell due meanwhile are delivered now, the oldest deadline first.",
		status: 204, fails: kinds{invalid, unavailable, outcomeUnknown, closing}}, s.pause(false))

	add(a, route{id: "purge-topic", allow: admins, method: "DELETE", path: "/v1/topics/{topic}/tasks", summary: "Cancel all pending and ready tasks of a topic",
		about: "The topic may be the beginning of names and an asterisk, such as order.*: then all topics whose names begin so are purged. Goes in pieces: done in a problem counts what was cancelled before it, and repeating the request does the rest. Tasks that are being delivered are left.",
		fails: kinds{invalid}.and(writes...)}, s.purge)

	// Dead tasks.
	add(a, route{id: "list-dead", allow: readers, method: "GET", path: "/v1/topics/{topic}/dead", summary: "List dead tasks",
		about: "Of all nodes, the longest dead first, with the reason of their death and the attempts that have failed last.",
		fails: lists}, s.listDead)
	add(a, route{id: "dead-reasons-of-topic", shared: true, allow: readers, method: "GET", path: "/v1/topics/{topic}/dead/reasons", summary: "Count a topic's dead tasks by reason and error",
		about: reasonsAbout, fails: kinds{invalid, unavailable, closing}}, s.topicReasons)
	add(a, route{id: "dead-reasons", shared: true, allow: readers, method: "GET", path: "/v1/dead/reasons", summary: "Count the dead tasks of all topics by topic, reason and error",
		about: "Of the topics of the token. Each topic has a share of the tasks that are looked at. " + reasonsAbout, fails: kinds{invalid, unavailable, closing}}, s.allReasons)
	add(a, route{id: "requeue-dead", allow: admins, method: "POST", path: "/v1/topics/{topic}/dead/requeue", summary: "Bring dead tasks back",
		about: "They have all their attempts again, and one deadline: now, unless it is given. Ids that are not among the dead of the topic are skipped, and listed as unknown.",
		reads: typeOf[Requeue](), fails: bodies.and(writes...)}, s.requeue)
	add(a, route{id: "delete-dead", allow: admins, method: "DELETE", path: "/v1/topics/{topic}/dead", summary: "Delete dead tasks",
		about: "Ids that are not dead are skipped.",
		reads: typeOf[Choice](), status: 204, fails: bodies.and(writes...)}, s.deleteDead)

	// Everything.
	add(a, route{id: "export", allow: admins, method: "GET", path: "/v1/export", summary: "Export everything, page by page",
		about: "Topics, tasks, dead tasks and finished ones that are kept, of all nodes, one JSON object a line. The last line of a page has the cursor of the next one, or says that the export is complete. " +
			"A task that exists from the first page to the last is in the export at least once, whatever becomes of it meanwhile. Any server of the fleet can answer the next page, also after a restart.",
		tells: "One JSON object a line, see docs/export.md.", fails: lists}, s.export)
	add(a, route{id: "import", allow: admins, method: "POST", path: "/v1/import", summary: "Import lines of an export",
		about: "Up to 10,000 topics and tasks, each as it was where it was exported: with its deadline, attempts, revision and fingerprint. A task that is there already counts as present, so that a request may be repeated; another task under its id is not replaced. " +
			"Lines are taken or refused one by one; text that is not JSON refuses the whole body.",
		takes: "Lines of GET /v1/export, in any order. Lines of the types next and end are passed over.", fails: bodies.and(creates...)}, s.importAll)

	add(a, route{id: "backup", allow: admins, method: "POST", path: "/v1/backup", summary: "Back the embedded ledger up, while the server runs",
		about: "Makes a directory below the server's directory of backups that holds everything, and that a server can be started on or lapse restore can copy. For tasks on the disk of this server; those in Redis are backed up by the means of Redis.",
		reads: typeOf[NewBackup](), optional: true, fails: bodies.and(noBackup, unavailable, closing)}, s.backup)

	// Nodes.
	add(a, route{id: "list-nodes", shared: true, allow: readers, method: "GET", path: "/v1/nodes", summary: "List the nodes that share the ledger",
		about: "As this node last saw them, by name. On a ledger of one node the list has that node only.",
		fails: kinds{invalid, unavailable, closing}}, s.nodes)
	add(a, route{id: "get-node", allow: readers, method: "GET", path: "/v1/nodes/{node}", summary: "Show a node, and where its tasks are in Redis",
		about: "The node as in the list, with the keys of the shards that it has made, how many tasks each has, and which node has it now.",
		fails: kinds{invalid, noNode, unavailable, closing}}, s.node)
	add(a, route{id: "drain-node", allow: admins, method: "POST", path: "/v1/nodes/{node}/drain", summary: "Have a node hand over its shards and end",
		about:  "Answered when the drain has begun; the list of nodes shows its progress. It may be repeated. The node takes no new tasks, and is not ready, until it has ended.",
		status: 202, fails: kinds{invalid, noNode, noSuccessor, unavailable, nodeAway, closing}}, s.drain)
	add(a, route{id: "give-up-spools", allow: admins, method: "DELETE", path: "/v1/nodes/{node}/missing-spools", summary: "Give up the missing spools of a node",
		about:  "The tasks in them count as lost from then on, and ids of the node that are not found are answered 404 again. If the node is started with one of them all the same, its tasks are delivered. It may be repeated.",
		status: 204, fails: kinds{invalid, noNode, unavailable, closing}}, s.giveUpSpools)

	// Sessions of browsers.
	add(a, route{id: "login", allow: public, method: "POST", path: sessionPath, summary: "Begin a session with a token",
		about: "For the pages of the server. Sets a cookie, which any server with the token takes for it in the next 12 hours, as long as the token is not removed or replaced.",
		reads: typeOf[Login](), fails: bodies.and(unauthorized)}, s.login)
	add(a, route{id: "get-session", allow: public, method: "GET", path: sessionPath, summary: "Tell the caller what it may do",
		about: "Tells it for the token of the request, in whichever way that came. A request without a token is answered too, with no scopes; one whose Authorization is wrong is refused.",
		fails: kinds{invalid, unauthorized}}, s.session)
	add(a, route{id: "logout", allow: public, method: "DELETE", path: sessionPath, summary: "End a session in this browser",
		about: "Takes the cookie away. A copy of it serves until its end; to end all sessions of a token, replace the token.", status: 204, fails: kinds{invalid, unconfirmed}}, s.logout)

	// The server itself.
	add(a, route{id: "stats", shared: true, allow: readers | allTopics, method: "GET", path: "/v1/stats", summary: "Counts of everything",
		about: "The counts are those of all nodes. " + reachAbout, fails: kinds{invalid}}, s.stats)
	add(a, route{id: "diagnosis", shared: true, allow: readers, method: "GET", path: "/v1/diagnosis", summary: "What is wrong, the causes first",
		about: "With the ledger, with nodes, with topics, as the node that is asked sees them. The dashboard and lapse top show this. " + reachAbout, fails: kinds{invalid, closing}}, s.diagnosis)
	add(a, route{id: "history", shared: true, allow: readers, method: "GET", path: "/v1/history", summary: "What has happened, by the minute for a day or by the hour for a month",
		about: "Of all topics together or of one, added up over all nodes. It is kept with the ledger once a minute, so that it survives the restart and the death of a node: what a node that was killed had counted in its last minute is lost. In memory alone (--memory) it ends with the process. Of a topic, a node knows those minutes in which it was one of the 32 with most activity. A token for some topics must name one. " + reachAbout,
		fails: kinds{invalid}}, s.history)
	add(a, route{id: "audit", allow: readers, method: "GET", path: "/v1/audit", summary: "Who did what",
		about: "Acts on many tasks, on topics and on nodes, and operators' acts on one task: those of sessions, of the command line, and of requests with the header Lapse-Operator. Of all nodes, the latest first, for a month. It is kept with the ledger, a second or so later. A token for some topics sees acts on these alone, and pages may be short.",
		fails: kinds{invalid, unavailable, closing}}, s.audit)
	add(a, route{id: "undo-act", allow: admins, method: "POST", path: "/v1/audit/{act}/undo", summary: "Take an act back",
		about: "A change of a topic's settings, a pause or a resume; an operator's move, fire, hold or resume of one task, or its cancel if the topic keeps finished tasks. Only if nothing has changed since: a repeated call is refused. Acts on many tasks are not taken back. What is done is an act, too, which names the one that it has taken back.",
		fails: kinds{invalid, noAct, notUndone, notFound, delivering, dead, changed}.and(writes...)}, s.undo)
	add(a, route{id: "forecast", shared: true, allow: readers, method: "GET", path: "/v1/forecast", summary: "Count the tasks that fall due, by time",
		about: "Counts the next attempt of each task, be it the first or a retry. It is no snapshot. It covers the tasks of all nodes. judgement says whether they will be delivered in time, at the best rate of the last 25 hours: which peaks wait, for how long, and which spread would help. It takes all tasks for one queue. Ask for a topic, if its receivers are its own. " + reachAbout,
		fails: kinds{invalid, closing}}, s.forecast)
	add(a, route{id: "waves", shared: true, allow: readers, method: "GET", path: "/v1/waves", summary: "What became of the tasks that were due in a span",
		about: "Counts tasks by their deadline, by topic and fate. What has ended is remembered for a day, by the minute of the deadline, and kept with the ledger once a minute: what a node that was killed had counted in its last minute is lost. It is no snapshot. " + reachAbout,
		fails: kinds{invalid, closing}}, s.waves)
	add(a, route{id: "events", allow: readers, method: "GET", path: eventsPath, summary: "Stream the events of tasks",
		about:   "Server-sent events of all nodes, from now on, without an end. Those of each node come in order, those of several as they arrive. An event of the type covered says from when on the events of another node are in the stream, one of the type missing that they are not, because the node does not answer. With scope=node the stream has the events of the node that is asked alone. A reader that is too slow loses events; an event of the type lost says how many. Ids count lost events too. They begin again with each stream, and Last-Event-ID changes nothing.",
		streams: []any{Event{}, EventsLost{}, NodeChange{}}, fails: kinds{invalid, overloaded, closing}}, s.events)
	add(a, route{id: "alive", allow: public, method: "GET", path: "/healthz", summary: "Report whether the server is alive",
		about: "503 once the scheduler has ended: the process should be restarted.", fails: kinds{invalid}}, s.alive)
	add(a, route{id: "ready", allow: public, method: "GET", path: "/readyz", summary: "Report whether replay is complete",
		about: "503 while the server waits for its ledger at the start and reads its tasks back, and while it drains or shuts down. A later outage of the ledger shows in the body only: the server goes on delivering.", fails: kinds{invalid}}, s.ready)

	if s.metrics != nil {
		s.page(metricsPath, readers|allTopics, func(c *gin.Context) { s.scraped.ServeHTTP(c.Writer, c.Request) })
	}
	s.page("/", public, dashboard) // it has no figures: it asks for them, or for a token
	s.page("/assets/:build/*file", public, serveAsset)
	s.page("/docs", anyToken, func(c *gin.Context) { writePage(c, s.docs) })
	s.page("/openapi.json", anyToken, func(c *gin.Context) { c.Data(http.StatusOK, mediaJSON, s.spec) })
	s.page("/problems/:name", public, explainProblem)
	s.probeRoutes()
	s.times = newTimes(s.engine.Routes())
	return a.OpenAPI(), s.describe(a)
}

// page adds a route that is not part of the API.
func (s *Server) page(path string, who allow, handler gin.HandlerFunc) {
	s.scopes[routeKey{http.MethodGet, path}] = who
	s.engine.GET(path, handler)
}
