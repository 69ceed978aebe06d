package metrics

import "github.com/prometheus/client_golang/prometheus"

// Labels.
const (
	labelTopic = "topic"
	labelState = "state"
	labelNode  = "node"

	labelKind       = "kind"
	labelOutcome    = "outcome"
	labelPercentile = "percentile"

	labelVersion, labelRevision, labelGo = "version", "revision", "goversion"
)

func name(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lapse_"+name, help, labels, nil)
}

// The HELP texts are read alone, one at a time: each says what is counted, in which unit, of what,
// and, where a value calls for an operator, which. Every figure is of the node that is scraped.

// By topic.
var (
	tasksNow     = name("tasks", "Tasks that this node holds now, by topic and state: pending (waits for its time), ready (due, waits for a receiver), delivering (handed out, not settled), dead (out of attempts, or buried; kept until requeued or deleted). The states add up to all tasks. Sum over the nodes for the fleet.", labelTopic, labelState)
	retrying     = name("tasks_retrying", "Tasks of this node that wait for another attempt after one that failed, now. lapse_tasks counts them as pending. Many of them: the receivers of the topic fail.", labelTopic)
	held         = name("tasks_held", "Tasks of this node whose countdown is held, now. lapse_tasks counts them as pending. They wait until they are resumed, however long that takes.", labelTopic)
	blocked      = name("tasks_blocked", "Ready tasks of the topic at this node that wait for deliveries of their groups to end, now, because of the topic's concurrency_per_group. They count as ready in lapse_tasks too.", labelTopic)
	strays       = name("tasks_strays", "Ready tasks of the topic at this node with a delivery of their own that the topic cannot make, now: it has another kind, or no task_delivery any more. They wait until its settings change, and count as ready in lapse_tasks too. More than 0: mend the topic, or the tasks.", labelTopic)
	finished     = name("tasks_finished", "Finished tasks of the topic that this node keeps now, because the topic's keep_finished says so. They are not in lapse_tasks. Each costs this node some 40 bytes, and the ledger its record.", labelTopic)
	scheduled    = name("tasks_scheduled_total", "Tasks that this node has accepted since its start.", labelTopic)
	delivered    = name("tasks_delivered_total", "Tasks of this node that their receiver has acknowledged, since the start of the node.", labelTopic)
	died         = name("tasks_died_total", "Tasks of this node that have died since its start: their attempts were exhausted, or their receiver buried them. They wait for an operator: alert on any increase.", labelTopic)
	deadLost     = name("dead_lost_total", "Dead tasks, and finished ones that were kept, which the ledger has lost, and of which this node had no records in memory to write them again, since its start. Alert on any increase: those tasks are gone, and their ids are free.", labelTopic)
	onDead       = name("on_dead_total", "Tasks of this node that have died since its start in a topic with on_dead, by outcome: made (followed by a task of the other topic), lost (not followed, since there was no room), ended (not followed, since the chain of deaths had come through that topic before, or was too long). Those lost and ended are dead, and that is all: alert on any increase.", labelTopic, labelOutcome)
	expired      = name("dead_expired_total", "Dead tasks that this node has deleted since its start, because the dead_retention of their topic had passed. They are gone undelivered.", labelTopic)
	deadOldest   = name("dead_oldest_age_seconds", "Age in seconds of the longest dead task of the topic at this node; 0 if none is dead. Once it reaches the topic's dead_retention (7 days unless set) that task is deleted.", labelTopic)
	cancelled    = name("tasks_cancelled_total", "Tasks of this node that were cancelled since its start, dead ones that were deleted included.", labelTopic)
	skipped      = name("tasks_skipped_total", "Tasks of this node that were given up undelivered since its start: they were later than their max_lateness, or their deadline had passed while no node held them and the topic's misfire says skip or coalesce.", labelTopic)
	failed       = name("attempts_failed_total", "Attempts at this node that failed since its start, of whatever cause. A task may fail several times and be delivered in the end.", labelTopic)
	attempts     = name("attempts_total", "Deliveries of tasks of this node that have ended since its start, by topic and outcome, each once: delivered (acknowledged), retried (failed, another attempt follows), exhausted (failed, and was the last), buried (given up by the receiver), lease_expired (not settled within its lease), returned (given back unused, by a receiver, or by another node that had fetched it for one). Those retried, exhausted, buried and lease_expired are the errors of the receivers.", labelTopic, labelOutcome)
	leaseExpired = name("attempts_lease_expired_total", "Attempts at this node whose lease ran out before they were settled, since its start; lapse_attempts_failed_total counts them too. Any increase: receivers die, or their lease is too short, and work is done twice.", labelTopic)
	panicked     = name("attempts_panicked_total", "Attempts whose handler panicked at this node, since its start; lapse_attempts_failed_total counts them too. Any increase is a fault of the program that embeds Lapse.", labelTopic)
	readyOldest  = name("ready_oldest_age_seconds", "How long, in seconds, the oldest ready task of the topic at this node has been due, for its first or a further attempt; 0 if none is ready. It grows while receivers are gone or too slow, or the topic is paused (lapse_topic_paused).", labelTopic)
	receivers    = name("receivers_waiting", "Calls of reserve that wait at this node for tasks of the topic, now. 0 while tasks are ready and the topic is pulled: no receiver asks.", labelTopic)
	recent       = name("lateness_recent_seconds", "How late tasks of this node are now, in seconds: first attempts of the last 5 minutes by how late they began, and tasks that are ready by how long they have been due. percentile 50 and 99 are upper bounds of buckets, 100 is the greatest; 0 if there are none.", labelTopic, labelPercentile)
	lateness     = name("lateness_seconds", "How late first attempts at this node have begun since its start, in seconds after the deadline of the task, or after its place in the spread of its topic. Tasks that still wait are not in it: see lapse_lateness_recent_seconds.", labelTopic)
	paused       = name("topic_paused", "1 if the topic is paused: it accepts tasks, and delivers none until it is resumed. Else 0.", labelTopic)
)

// By way of delivery.
var (
	deliveryOutcomes = name("delivery_outcomes_total", "Attempts that this node has made itself since its start, by kind of delivery, and by outcome as that way of delivery counts them: of webhooks 2xx, 4xx, timeout, dns and so on.", labelKind, labelOutcome)
	deliveryTook     = name("delivery_duration_seconds", "How long attempts took that this node has made itself since its start, in seconds, by kind of delivery (webhook, stream, handler and so on). Tasks delivered in one batch each count with the time of the batch. Pulled tasks are not in it.", labelKind)
)

// Of the node.
var (
	info            = name("node_info", "Always 1. The label node is the name of this node.", labelNode)
	build           = name("build_info", "Always 1. The labels tell the version of the program, the commit that it was built from, and the version of Go.", labelVersion, labelRevision, labelGo)
	ready           = name("ready", "1 once this node has read all of its tasks from the ledger after its start, else 0. It should be 1 within minutes.")
	replayRecords   = name("replay_records", "Records that this node has read from the ledger in the replay at its start.")
	replaySeconds   = name("replay_seconds", "How long the replay at the start of this node took, in seconds, or how long it has been running so far.")
	rescued         = name("sweep_rescued_total", "Overdue tasks that the sweep of this node has delivered because its timing wheel did not fire them, since its start. A pause of the process adds nothing. Outside a fault it stays 0: alert on any increase.")
	missedWakes     = name("sweep_missed_wakes_total", "Topics of this node whose receivers did not know of ready tasks until the sweep came, since its start. Outside a fault it stays 0: alert on any increase.")
	leasesReturned  = name("sweep_leases_returned_total", "Deliveries that the sweep of this node has taken back because their lease ran out, since its start. lapse_attempts_lease_expired_total tells them by topic.")
	fullSweeps      = name("sweep_full_total", "Full sweeps of this node that have ended since its start: all of its memory searched for overdue tasks, and compared with the ledger.")
	fullSweepAt     = name("sweep_full_timestamp_seconds", "When the last full sweep of this node began that has ended, in seconds of Unix time; 0 if there was none. Nightly with --sweep-at.")
	fullSweepTook   = name("sweep_full_seconds", "How long the last full sweep of this node took, in seconds; 0 if there was none.")
	backlog         = name("sweep_backlog", "Ready tasks of topics that this node delivers itself, now. Beyond the setting sweep.backlog the node raises the concurrency of topics that have none of their own.")
	backlogs        = name("sweep_backlogs_total", "How often this node has had a backlog since its start: more ready tasks of topics that it delivers itself than the setting sweep.backlog.")
	workers         = name("deliveries_running", "Places for deliveries that are taken at this node, now, of at most the setting max_deliveries. A way of delivery that delivers batches takes several at once.")
	crowd           = name("deliveries_waiting_topics", "Topics that want to make more deliveries at this node than there are places, now, and share the places by their weight. 0 while there are enough: else raise max_deliveries, or add nodes.")
	concurrency     = name("sweep_concurrency", "How many deliveries a topic without a concurrency of its own may make at once at this node, now. A backlog raises it.")
	reserves        = name("nodes_reserves_total", "Deliveries between this node and others since its start, to receivers that wait at one node, of tasks that the other holds. side given: tasks of this node; side taken: receivers at this node.", "side")
	help            = name("nodes_help_total", "Deliveries that one node makes of the tasks of another during a backlog there, since the start of this node. side given: made here; side taken: made by others of the tasks of this node.", "side")
	unsettled       = name("settlements_dropped_total", "Settlements of tasks of other nodes that this node has dropped since its start: there was no room for more while those nodes did not answer. Each of these tasks may be delivered again.")
	auditChecked    = name("audit_checked_total", "Tasks that the audit of this node has compared between memory and ledger since its start.")
	ledgerRewinds   = name("ledger_rewinds_total", "Times since the start of this node that the ledger had lost confirmed writes of a shard, which the node has written again. Outside a fault it stays 0: alert on any increase.")
	auditRepaired   = name("audit_repaired_total", "Tasks that the audit of this node has found missing in the ledger and written again, since its start. Outside a fault it stays 0: another program deletes there.")
	ledgerUp        = name("ledger_up", "1 if the ledger answers this node, else 0: then new tasks are refused, and those in memory are still delivered.")
	ledgerStalled   = name("ledger_stalled_seconds", "How long, in seconds, the ledger has not answered a write of this node; 0 if it answers.")
	ledgerAccepting = name("ledger_accepting", "1 if the ledger takes new records of this node, else 0: it is full, or must not be written to.")
	ledgerCommits   = name("ledger_commits_total", "Batches of changes of this node that the ledger has confirmed since its start.")
	ledgerChanges   = name("ledger_changes_total", "Changes of tasks in the batches that the ledger has confirmed to this node since its start: records put, buried and deleted.")
	ledgerRepeats   = name("ledger_repeats_total", "Batches that this node has sent again since its start, because the ledger had not answered them. Any increase: the ledger or the network fails.")
	commitTook      = name("ledger_commit_duration_seconds", "How long batches took that the ledger has confirmed to this node since its start, in seconds, from the first sending to the answer. A caller waits for one of them, and for the one before.")
	ledgerQueued    = name("ledger_queued", "Changes of tasks of this node that wait for the ledger, now, those being written included. It grows while the ledger is slow or away.")
	spoolTasks      = name("spool_tasks", "Tasks that only the disk of this node has, now, since the ledger could not take them. While there are any, the node and its disk must not be taken away.")
	spoolMoved      = name("spool_moved_total", "Tasks that this node has moved from its spool to the ledger since its start.")
	spoolsMissing   = name("spools_missing", "Former spools of this node that are missing and may have tasks, now: it was started with another spool, or with none. Ids of this node that are not found are answered 503, and so are lists, until it is started with them, or they are given up.")
	unknownRecords  = name("ledger_unknown_records", "Records in the shards of this node that this version cannot read: of a newer version, or damaged. They are kept and not delivered. Outside a downgrade it should be 0.")
	arenaBytes      = name("arena_bytes", "Memory in bytes that this node has reserved for the records of tasks.")
	arenaLive       = name("arena_live_bytes", "Memory in bytes that the records of tasks use at this node, of lapse_arena_bytes.")
	armed           = name("wheel_armed", "Tasks in the timing wheel of this node, now: those that are pending.")
	eventStreams    = name("event_streams", "Readers of events that are connected to this node, now. Those of other nodes that hear of its events are not counted.")
	eventsLost      = name("events_lost_total", "Events of this node that readers, here or at other nodes, have lost since its start, because they were too slow. No task is any later for it.")
	coalescing      = name("coalesce_held_back", "Misfired tasks of this node that are held back, now: their topics coalesce, and other nodes that do not answer, or that have a later task of the group, keep them waiting for a bounded time.")
	coalesced       = name("coalesce_skipped_total", "Misfired tasks that this node has skipped since its start because a later one of their group is delivered, here or at another node. They are in lapse_tasks_skipped_total, too.")
	logDropped      = name("log_dropped_total", "Lines of the log that this node has not written since its start, because nothing reads it, or not fast enough.")
	httpRefused     = name("http_refused_total", "Requests and connections that this node has refused since its start, by reason. Requests that met a bound: body, answer, poll, event_stream. Requests that a page of another site made: other_site; that named another host: host. Requests and logins with a token that the node does not know: token. Closed connections: of an address that had too many: address; at max_connections before their request was complete: unfinished; at max_connections since their caller did not read the answer: unread.", "reason")
	httpTook        = name("http_request_duration_seconds", "How long this node took to answer HTTP requests since its start, in seconds, from the end of the header to the end of the answer, by method, route and class of status. Routes where callers wait (reserve) or read a stream (events) include that time. Requests that match no route have the route none.", "method", "route", "status")
	respNow         = name("resp_connections", "Connections of clients of Redis to this node, now, of at most the setting resp_max_connections.")
	respTotal       = name("resp_connections_total", "Connections of clients of Redis to this node since its start, by outcome: accepted; refused (more than resp_max_connections); address (closed at once, since its address had too many); bad_input (accepted, and ended by the node because of bytes that are no command, or a command beyond resp_max_command); unfinished and unread (closed at resp_max_connections for another one: the client had not said who it is, or did not read).", labelOutcome)
	respGuesses     = name("resp_wrong_tokens_total", "AUTH and HELLO of clients of Redis with a token that this node does not know, since its start.")
	respCommands    = name("resp_commands_total", "Commands of clients of Redis that this node has answered since its start, by command, with its subcommands, and outcome: done or error. Commands that there are not have the command unknown.", "command", labelOutcome)
	respTook        = name("resp_command_seconds", "How long this node took to answer commands of clients of Redis since its start, in seconds, from when a command was read until its answer was ready to be sent, by command, with its subcommands. The time for which a command with BLOCK waits is left out. Commands that there are not have the command unknown.", "command")
	respSubscribers = name("resp_subscribers", "Clients of Redis that have subscribed to a channel or a pattern at this node, now.")
	respCut         = name("resp_subscribers_cut_total", "Subscribers that this node has cut off since its start because they did not read what they had subscribed to. What was on its way to them is lost.")
	respDropped     = name("resp_events_dropped_total", "Events that subscribers have not got since the start of this node, by reason: unsent (other nodes did not get them, because too much waited to be sent to them); lost (expired events of topics with another way of delivery than keyevent, which came faster than the node can publish them; of keyevent, those that a subscriber has perhaps not read, beyond what can be kept to be published again).", "reason")
	clockOffset     = name("clock_offset_seconds", "The clock of another node minus that of this one, in seconds, by the name of the other node; 0 for the node itself. Tasks are due by the clock of the node that owns them: from 0.1 on it is a warning.", "peer")
	clockSteps      = name("clock_steps_total", "Jumps of the wall clock of this node that it has noticed since its start. Deadlines are kept by that clock: find out what sets it.")
)

// Among other nodes.
var (
	nodesNow       = name("nodes", "Nodes that share the ledger, as this node sees them, by state: live, draining, silent (no heartbeat; its shards are adopted by others) or released. Any silent one calls for a look.", labelState)
	shardsNow      = name("shards", "Shards, now, by kind: own and adopted ones are held by this node; away are those of this node that others hold, which should be 0 soon after its start.", labelKind)
	shardsGained   = name("shards_gained_total", "Shards that this node has adopted from others, or got back, since its start.")
	shardsYielded  = name("shards_yielded_total", "Shards that this node has handed over to others since its start.")
	shardsLost     = name("shards_lost_total", "Shards that others took over while this node was cut off from the ledger, since its start. Outside a fault it stays 0: what was delivered meanwhile may have come twice.")
	shardTasks     = name("shards_tasks_left_total", "Tasks that have left the memory of this node together with their shards, since its start. Other nodes have them.")
	unsure         = name("unsure", "1 while this node is cut off from the ledger for so long that others may have adopted what it holds, else 0.")
	unsureBegun    = name("deliveries_unsure_total", "Deliveries that this node has begun since its start while others may have adopted what it holds: each may be a second one. With on_outage: pause it stays 0.")
	lostDeliveries = name("deliveries_lost_total", "Deliveries of this node since its start that were open when it turned out that their shard had been lost: other nodes may have made them, too.")
	draining       = name("draining", "1 while this node hands over what it holds and takes no new tasks, before it ends. Else 0.")
	asked          = name("relay_asked_total", "Calls that this node has made to other nodes since its start, about their tasks or about shards.")
	askedInVain    = name("relay_asked_failed_total", "Calls of this node to other nodes without an answer, since its start, by outcome: unheard (no node heard it), unanswered (not in time), overloaded (not sent, since too many were under way). Callers may have got 503.", labelOutcome)
	resent         = name("relay_resent_total", "Messages to other nodes that this node has sent again since its start, because no answer came.")
	answered       = name("relay_answered_total", "Calls of other nodes that this node has answered since its start.")
	refused        = name("relay_refused_total", "Calls of other nodes that this node had no room to answer, since its start.")
	asking         = name("relay_asking", "Calls of this node to other nodes that wait for their answer, now.")
	answering      = name("relay_answering", "Calls of other nodes that this node is answering, now.")
)

// all lists every metric, for Describe.
var all = []*prometheus.Desc{
	tasksNow, retrying, held, blocked, strays, finished, scheduled, delivered, died, onDead, deadLost, expired, deadOldest, cancelled, skipped, failed, attempts, leaseExpired, panicked, readyOldest, receivers, recent, lateness, paused,
	deliveryOutcomes, deliveryTook,
	info, build, ready, replayRecords, replaySeconds, rescued, missedWakes, leasesReturned,
	fullSweeps, fullSweepAt, fullSweepTook, backlog, backlogs, workers, crowd, concurrency, reserves, help, unsettled, auditChecked, auditRepaired, ledgerRewinds,
	ledgerUp, ledgerStalled, ledgerAccepting, ledgerCommits, ledgerChanges, ledgerRepeats, commitTook, ledgerQueued, spoolTasks, spoolMoved, spoolsMissing, unknownRecords,
	arenaBytes, arenaLive, armed, eventStreams, eventsLost, coalescing, coalesced, httpRefused, httpTook, clockOffset, clockSteps,
	respNow, respTotal, respGuesses, respCommands, respTook, respSubscribers, respCut, respDropped,
	nodesNow, shardsNow, shardsGained, shardsYielded, shardsLost, shardTasks, unsure, unsureBegun, lostDeliveries, draining,
	asked, askedInVain, resent, answered, refused, asking, answering,
}
