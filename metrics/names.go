package metrics

import "github.com/prometheus/client_golang/prometheus"

// Labels.
const (
	labelTopic = "topic"
	labelState = "state"
	labelNode  = "node"

	labelKind     = "kind"
	labelOutcome  = "outcome"
	labelQuantile = "quantile"

	labelVersion, labelRevision, labelGo = "version", "revision", "goversion"
)

func name(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lapse_"+name, help, labels, nil)
}

// By topic.
var (
	tasksNow     = name("tasks", "Tasks by state: pending, ready, delivering or dead.", labelTopic, labelState)
	retrying     = name("tasks_retrying", "Of the tasks that are pending, those of which an attempt was made: they wait for the next one.", labelTopic)
	scheduled    = name("tasks_scheduled_total", "Tasks accepted.", labelTopic)
	delivered    = name("tasks_delivered_total", "Tasks acknowledged by their receiver.", labelTopic)
	died         = name("tasks_died_total", "Tasks whose attempts were exhausted, or that were buried.", labelTopic)
	expired      = name("dead_expired_total", "Dead tasks deleted because their topic's dead_retention had passed.", labelTopic)
	deadOldest   = name("dead_oldest_age_seconds", "How long the first of those that are dead has been; 0 if there are none.", labelTopic)
	cancelled    = name("tasks_cancelled_total", "Tasks cancelled.", labelTopic)
	skipped      = name("tasks_skipped_total", "Tasks not delivered because they were later than their max_lateness, or because of their topic's misfire.", labelTopic)
	failed       = name("attempts_failed_total", "Attempts that failed, of any cause.", labelTopic)
	leaseExpired = name("attempts_lease_expired_total", "Attempts whose lease ran out; also in attempts_failed.", labelTopic)
	panicked     = name("attempts_panicked_total", "Attempts whose handler panicked; also in attempts_failed.", labelTopic)
	readyOldest  = name("ready_oldest_age_seconds", "How long the oldest task has been due that is ready now, for its first or a further attempt; 0 if none is.", labelTopic)
	receivers    = name("receivers_waiting", "Calls of reserve that wait at this node for tasks of the topic.", labelTopic)
	recent       = name("lateness_recent_seconds", "Lateness of first attempts of the last 5 minutes and of tasks that are ready now: the bound of half of them (0.5) and of 99 of 100 (0.99), and the greatest (1); 0 if there are none.", labelTopic, labelQuantile)
	lateness     = name("lateness_seconds", "Start of a task's first attempt minus its deadline, or minus its place in its topic's spread.", labelTopic)
	paused       = name("topic_paused", "1 if the topic accepts tasks but does not deliver them.", labelTopic)
)

// By way of delivery.
var deliveryOutcomes = name("delivery_outcomes_total", "Attempts by way of delivery and what became of them, as the way counts them.", labelKind, labelOutcome)

// Of the node.
var (
	info            = name("node_info", "Always 1; tells the name of the node.", labelNode)
	build           = name("build_info", "Always 1; tells the version of the program, the commit that it was built from, and the version of Go.", labelVersion, labelRevision, labelGo)
	ready           = name("ready", "1 once replay is over.")
	replayRecords   = name("replay_records", "Records that the replay at the start has read.")
	replaySeconds   = name("replay_seconds", "How long that replay took, or has been running.")
	rescued         = name("sweep_rescued_total", "Tasks that the sweep found overdue. Outside a fault it stays 0: alert on any increase.")
	missedWakes     = name("sweep_missed_wakes_total", "Topics whose receivers did not know of ready tasks until the sweep came. Outside a fault it stays 0.")
	leasesReturned  = name("sweep_leases_returned_total", "Deliveries that the sweep took back because their lease ran out.")
	fullSweeps      = name("sweep_full_total", "Full sweeps that are over: all of memory searched, and compared with the ledger.")
	fullSweepAt     = name("sweep_full_timestamp_seconds", "When the last of them began, in Unix time; 0 if there was none.")
	fullSweepTook   = name("sweep_full_seconds", "How long it took.")
	backlog         = name("sweep_backlog", "Ready tasks of topics that the node delivers by itself.")
	backlogs        = name("sweep_backlogs_total", "How often they were more than sweep.backlog.")
	workers         = name("deliveries_running", "Places of deliveries that are taken, of at most max_deliveries; a way that delivers batches takes several at once.")
	crowd           = name("deliveries_waiting_topics", "Topics that want to make more, and share the places by their weight; 0 while there are enough.")
	concurrency     = name("sweep_concurrency", "Deliveries at once that a topic without a concurrency of its own may have now; raised during a backlog.")
	reserves        = name("nodes_reserves_total", "Deliveries to receivers that wait at one node, of tasks that another one holds: given by this one, or taken.", "side")
	help            = name("nodes_help_total", "Deliveries that one node makes of another one's tasks during a backlog there: help that this one has given, or taken.", "side")
	unsettled       = name("settlements_dropped_total", "Settlements of other nodes' tasks for which there was no room while those nodes did not answer. Their tasks may be delivered again.")
	auditChecked    = name("audit_checked_total", "Tasks compared between memory and ledger.")
	ledgerRewinds   = name("ledger_rewinds_total", "Times that the ledger's storage had lost confirmed writes of a shard, which were written again. Outside a fault it stays 0.")
	auditRepaired   = name("audit_repaired_total", "Differences between memory and ledger that were repaired. Outside a fault it stays 0.")
	ledgerUp        = name("ledger_up", "1 if the ledger answers.")
	ledgerStalled   = name("ledger_stalled_seconds", "How long the ledger has not answered a write.")
	ledgerAccepting = name("ledger_accepting", "1 if the ledger takes new records.")
	ledgerCommits   = name("ledger_commits_total", "Batches that the ledger has confirmed.")
	ledgerChanges   = name("ledger_changes_total", "Puts, buries and deletes in those batches.")
	ledgerRepeats   = name("ledger_repeats_total", "Batches that were sent again because no answer came.")
	ledgerQueued    = name("ledger_queued", "Changes that wait to be written.")
	spoolTasks      = name("spool_tasks", "Tasks that the ledger could not take, and that only the disk of this node has.")
	spoolMoved      = name("spool_moved_total", "Tasks moved from there to the ledger.")
	unknownRecords  = name("ledger_unknown_records", "Records that this version cannot read. They are kept.")
	arenaBytes      = name("arena_bytes", "Memory reserved for tasks.")
	arenaLive       = name("arena_live_bytes", "Memory in use by tasks.")
	armed           = name("wheel_armed", "Entries of the timing wheel.")
	eventStreams    = name("event_streams", "Readers of events, that are connected now.")
	eventsLost      = name("events_lost_total", "Events that a reader was too slow for. No task is any later for it.")
	httpRefused     = name("http_refused_total", "Requests that met a bound of the server: body, answer, poll, event_stream; that a page of another site made (other_site) or that named another host (host); and connections closed since their address had too many (address), or at max_connections before their request was complete (unfinished) or since their caller did not read the answer (unread).", "reason")
	clockSteps      = name("clock_steps_total", "Jumps of the wall clock that were noticed.")
)

// Among other nodes.
var (
	nodesNow       = name("nodes", "Nodes that share the ledger, by state: live, draining, silent or released.", labelState)
	shardsNow      = name("shards", "Shards by kind: own and adopted are held here; away are the node's own that others hold.", labelKind)
	shardsGained   = name("shards_gained_total", "Shards adopted from others, or got back.")
	shardsYielded  = name("shards_yielded_total", "Shards handed over to others.")
	shardsLost     = name("shards_lost_total", "Shards that others took over while this node was cut off. Outside a fault it stays 0.")
	shardTasks     = name("shards_tasks_left_total", "Tasks that have left memory with their shards.")
	unsure         = name("unsure", "1 while others may have adopted what this node holds, since it is cut off from the ledger.")
	unsureBegun    = name("deliveries_unsure_total", "Deliveries begun meanwhile: each may be a second one. With on_outage: pause it stays 0.")
	lostDeliveries = name("deliveries_lost_total", "Deliveries that were open when it turned out that their shard had been lost: others may have made them, too.")
	draining       = name("draining", "1 while the node hands over what it holds, and takes no new tasks.")
	asked          = name("relay_asked_total", "Calls to other nodes, about their tasks or about shards.")
	askedInVain    = name("relay_asked_failed_total", "Those without an answer: heard by no node, unanswered in time, or not sent since too many were under way (overloaded).", labelOutcome)
	resent         = name("relay_resent_total", "Messages that were sent again because no answer came.")
	answered       = name("relay_answered_total", "Calls of other nodes that were answered here.")
	refused        = name("relay_refused_total", "Calls of other nodes that there was no room to answer.")
	asking         = name("relay_asking", "Calls that wait for their answer.")
	answering      = name("relay_answering", "Calls of others that are being answered.")
)

// all lists every metric, for Describe.
var all = []*prometheus.Desc{
	tasksNow, retrying, scheduled, delivered, died, expired, deadOldest, cancelled, skipped, failed, leaseExpired, panicked, readyOldest, receivers, recent, lateness, paused,
	deliveryOutcomes,
	info, build, ready, replayRecords, replaySeconds, rescued, missedWakes, leasesReturned,
	fullSweeps, fullSweepAt, fullSweepTook, backlog, backlogs, workers, crowd, concurrency, reserves, help, unsettled, auditChecked, auditRepaired, ledgerRewinds,
	ledgerUp, ledgerStalled, ledgerAccepting, ledgerCommits, ledgerChanges, ledgerRepeats, ledgerQueued, spoolTasks, spoolMoved, unknownRecords,
	arenaBytes, arenaLive, armed, eventStreams, eventsLost, httpRefused, clockSteps,
	nodesNow, shardsNow, shardsGained, shardsYielded, shardsLost, shardTasks, unsure, unsureBegun, lostDeliveries, draining,
	asked, askedInVain, resent, answered, refused, asking, answering,
}
