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

// all are every metric, for Describe.
var all []*prometheus.Desc

func name(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("lapse_"+name, help, labels, nil)
	all = append(all, d)
	return d
}

// The HELP texts are read alone, one at a time: each says what is counted, in which unit, of what,
// and, where a value calls for an operator, which. Every figure is of the node that is scraped. The
// metrics that show a field of tasks.Stats as it is are described there, see figures.

// By topic.
var (
	attempts = name("attempts_total", "Deliveries of tasks of this node that have ended since its start, by topic and outcome, each once: delivered (acknowledged), retried (failed, another attempt follows), exhausted (failed, and was the last), buried (given up by the receiver), lease_expired (not settled within its lease), returned (given back unused, by a receiver, or by another node that had fetched it for one). Those retried, exhausted, buried and lease_expired are the errors of the receivers.", labelTopic, labelOutcome)
	recent   = name("lateness_recent_seconds", "How late tasks of this node are now, in seconds: first attempts of the last 5 minutes by how late they began, and tasks that are ready by how long they have been due. percentile 50 and 99 are upper bounds of buckets, 100 is the greatest; 0 if there are none.", labelTopic, labelPercentile)
	lateness = name("lateness_seconds", "How late first attempts at this node have begun since its start, in seconds after the deadline of the task, or after its place in the spread of its topic. Tasks that still wait are not in it: see lapse_lateness_recent_seconds.", labelTopic)
	paused   = name("topic_paused", "1 if the topic is paused: it accepts tasks, and delivers none until it is resumed. Else 0.", labelTopic)
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
	ledgerAccepting = name("ledger_accepting", "1 if the ledger takes new records of this node, else 0: it is full, or must not be written to.")
	commitTook      = name("ledger_commit_duration_seconds", "How long batches took that the ledger has confirmed to this node since its start, in seconds, from the first sending to the answer. A caller waits for one of them, and for the one before.")
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
)

// Among other nodes.
var (
	nodesNow  = name("nodes", "Nodes that share the ledger, as this node sees them, by state: live, draining, silent (no heartbeat; its shards are adopted by others) or released. Any silent one calls for a look.", labelState)
	shardsNow = name("shards", "Shards, now, by kind: own and adopted ones are held by this node; away are those of this node that others hold, which should be 0 soon after its start.", labelKind)
)
