package respapi

import "github.com/lapsehq/lapse/edge"

// keyScope is that of verbs that read keys: who may schedule a task may look at it.
const keyScope = edge.MaySchedule | edge.MayRead

// The table of all verbs. init, since COMMAND reads the table that it stands in.
func init() {
	verbs = index(
		// About the connection: connection.go, client.go, info.go.
		&verb{name: "hello", arity: -1, flags: noAuth | fast | divides, scope: edge.AnyRight, run: runHello},
		&verb{name: "auth", arity: -2, flags: noAuth | fast | divides, scope: edge.AnyRight, run: runAuth},
		&verb{name: "ping", arity: -1, flags: fast | inSubscription, scope: edge.AnyRight, run: runPing},
		&verb{name: "echo", arity: 2, flags: fast, scope: edge.AnyRight, run: runEcho},
		&verb{name: "select", arity: 2, flags: fast | divides, scope: edge.AnyRight, run: runSelect},
		&verb{name: "quit", arity: -1, flags: noAuth | fast | inSubscription | notQueued, scope: edge.AnyRight, run: runQuit},
		&verb{name: "reset", arity: 1, flags: noAuth | fast | inSubscription | notQueued, scope: edge.AnyRight, run: runReset},
		&verb{name: "client", arity: -2, scope: edge.AnyRight, subs: clientVerbs()},
		&verb{name: "command", arity: -1, scope: edge.AnyRight, run: runCommand, subs: commandVerbs()},
		&verb{name: "info", arity: -1, scope: edge.AnyRight, run: runInfo},
		&verb{name: "role", arity: 1, flags: fast, scope: edge.AnyRight, run: runRole},
		&verb{name: "wait", arity: 3, scope: edge.AnyRight, run: runWait},
		&verb{name: "time", arity: 1, flags: fast, scope: edge.AnyRight, run: runTime},

		// Subscriptions: subscriptions.go, config.go.
		&verb{name: "subscribe", arity: -2, flags: pushes | inSubscription, scope: listening, run: runSubscribe},
		&verb{name: "psubscribe", arity: -2, flags: pushes | inSubscription, scope: listening, run: runPsubscribe},
		&verb{name: "unsubscribe", arity: -1, flags: pushes | inSubscription, scope: edge.AnyRight, run: runUnsubscribe},
		&verb{name: "punsubscribe", arity: -1, flags: pushes | inSubscription, scope: edge.AnyRight, run: runPunsubscribe},
		&verb{name: "publish", arity: 3, flags: pushes | fast, scope: edge.MayReceive | edge.MaySchedule, run: runPublish},
		&verb{name: "pubsub", arity: -2, scope: edge.AnyRight, subs: pubsubVerbs()},
		&verb{name: "config", arity: -2, scope: edge.AnyRight, subs: configVerbs()},

		// Transactions: multi.go, exec.go.
		&verb{name: "multi", arity: 1, flags: fast | notQueued, scope: edge.AnyRight, run: runMulti},
		&verb{name: "exec", arity: 1, flags: notQueued, scope: edge.AnyRight, run: runExec},
		&verb{name: "discard", arity: 1, flags: fast | notQueued, scope: edge.AnyRight, run: runDiscard},
		&verb{name: "watch", arity: -2, flags: needsTasks | fast | notQueued, scope: keyScope, first: 1, last: -1, step: 1, run: runWatch},
		&verb{name: "unwatch", arity: 1, flags: fast, scope: edge.AnyRight, run: runUnwatch},

		// Scripts: script.go.
		&verb{name: "eval", arity: -3, flags: needsTasks | writes, scope: edge.MaySchedule, first: 3, last: -1, step: 1, numbered: true, run: runEval},
		&verb{name: "evalsha", arity: -3, flags: needsTasks | writes, scope: edge.MaySchedule, first: 3, last: -1, step: 1, numbered: true, run: runEval},
		&verb{name: "eval_ro", arity: -3, flags: needsTasks, scope: keyScope, first: 3, last: -1, step: 1, numbered: true, run: runEval},
		&verb{name: "evalsha_ro", arity: -3, flags: needsTasks, scope: keyScope, first: 3, last: -1, step: 1, numbered: true, run: runEval},
		&verb{name: "script", arity: -2, scope: edge.AnyRight, subs: scriptVerbs()},

		// Values: strings.go, values.go.
		&verb{name: "set", arity: -3, flags: needsTasks | writes, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runSet, set: setOf, batch: setAll},
		&verb{name: "setex", arity: 4, flags: needsTasks | writes, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runSet, set: setExOf(seconds)},
		&verb{name: "psetex", arity: 4, flags: needsTasks | writes, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runSet, set: setExOf(millis)},
		&verb{name: "setnx", arity: 3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runSetNX},
		&verb{name: "getset", arity: 3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runGetSet},
		&verb{name: "mset", arity: -3, flags: needsTasks | writes, scope: edge.MaySchedule, first: 1, last: -1, step: 2, run: runMSet},
		&verb{name: "msetnx", arity: -3, flags: needsTasks | writes | divides, scope: edge.MaySchedule, first: 1, last: -1, step: 2, run: runMSetNX},
		&verb{name: "msetex", arity: -4, flags: needsTasks | writes | divides, scope: edge.MaySchedule, first: 2, last: -1, step: 2, numbered: true, run: runMSetEx},
		&verb{name: "get", arity: 2, flags: needsTasks | looks | fast, scope: keyScope, first: 1, last: 1, step: 1, run: runGet},
		&verb{name: "getex", arity: -2, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runGetEx},
		&verb{name: "getdel", arity: 2, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runGetDel},
		&verb{name: "mget", arity: -2, flags: needsTasks | fast, scope: keyScope, first: 1, last: -1, step: 1, run: runMGet},
		&verb{name: "strlen", arity: 2, flags: needsTasks | looks | fast, scope: keyScope, first: 1, last: 1, step: 1, run: runStrLen},
		&verb{name: "append", arity: 3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runAppend},
		&verb{name: "incr", arity: 2, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runAdd(1)},
		&verb{name: "decr", arity: 2, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runAdd(-1)},
		&verb{name: "incrby", arity: 3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runIncrBy},
		&verb{name: "decrby", arity: 3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runDecrBy},
		&verb{name: "incrbyfloat", arity: 3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runIncrByFloat},
		&verb{name: "getrange", arity: 4, flags: needsTasks | looks, scope: keyScope, first: 1, last: 1, step: 1, run: runGetRange},
		&verb{name: "substr", arity: 4, flags: needsTasks | looks, scope: keyScope, first: 1, last: 1, step: 1, run: runGetRange},
		&verb{name: "setrange", arity: 4, flags: needsTasks | writes, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runSetRange},

		// Deadlines: expire.go.
		&verb{name: "expire", arity: -3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runExpire(seconds)},
		&verb{name: "pexpire", arity: -3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runExpire(millis)},
		&verb{name: "expireat", arity: -3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runExpire(unixSeconds)},
		&verb{name: "pexpireat", arity: -3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runExpire(unixMillis)},
		&verb{name: "persist", arity: 2, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runPersist},
		&verb{name: "ttl", arity: 2, flags: needsTasks | looks | fast, scope: keyScope, first: 1, last: 1, step: 1, run: runTTL(seconds)},
		&verb{name: "pttl", arity: 2, flags: needsTasks | looks | fast, scope: keyScope, first: 1, last: 1, step: 1, run: runTTL(millis)},
		&verb{name: "expiretime", arity: 2, flags: needsTasks | looks | fast, scope: keyScope, first: 1, last: 1, step: 1, run: runTTL(unixSeconds)},
		&verb{name: "pexpiretime", arity: 2, flags: needsTasks | looks | fast, scope: keyScope, first: 1, last: 1, step: 1, run: runTTL(unixMillis)},

		// Keys: keys.go, scan.go.
		&verb{name: "del", arity: -2, flags: needsTasks | writes, scope: edge.MaySchedule, first: 1, last: -1, step: 1, run: runDel},
		&verb{name: "unlink", arity: -2, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: -1, step: 1, run: runDel},
		&verb{name: "delex", arity: -2, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runDelEx},
		&verb{name: "delifeq", arity: 3, flags: needsTasks | writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runDelIfEq},
		&verb{name: "exists", arity: -2, flags: needsTasks | fast, scope: keyScope, first: 1, last: -1, step: 1, run: runExists},
		&verb{name: "touch", arity: -2, flags: needsTasks | fast, scope: keyScope, first: 1, last: -1, step: 1, run: runExists},
		&verb{name: "type", arity: 2, flags: needsTasks | fast, scope: keyScope, first: 1, last: 1, step: 1, run: runType},
		&verb{name: "rename", arity: 3, flags: needsTasks | writes | divides, scope: edge.MaySchedule, first: 1, last: 2, step: 1, run: runRename(false)},
		&verb{name: "renamenx", arity: 3, flags: needsTasks | writes | fast | divides, scope: edge.MaySchedule, first: 1, last: 2, step: 1, run: runRename(true)},
		&verb{name: "copy", arity: -3, flags: needsTasks | writes | divides, scope: edge.MaySchedule, first: 1, last: 2, step: 1, run: runCopy},
		&verb{name: "keys", arity: 2, flags: needsTasks | divides, scope: keyScope, run: runKeys},
		&verb{name: "scan", arity: -2, flags: needsTasks | divides, scope: keyScope, run: runScan},
		&verb{name: "randomkey", arity: 1, flags: needsTasks | divides, scope: keyScope, run: runRandomKey},
		&verb{name: "dbsize", arity: 1, flags: needsTasks | fast | divides, scope: keyScope, run: runDBSize},
		&verb{name: "flushdb", arity: -1, flags: needsTasks | writes | divides, scope: edge.MaySchedule, run: runFlush},
		&verb{name: "flushall", arity: -1, flags: needsTasks | writes | divides, scope: edge.MaySchedule, run: runFlush},

		// Streams: streamread.go, streamack.go, streamclaim.go, streaminfo.go, streamgroup.go.
		&verb{name: "xreadgroup", arity: -7, flags: needsTasks | writes | blocks, scope: edge.MayReceive, run: runReadGroup},
		&verb{name: "xack", arity: -4, flags: needsTasks | writes | fast, scope: edge.MayReceive, first: 1, last: 1, step: 1, run: runAck, batch: ackAll, repeats: true},
		&verb{name: "xackdel", arity: -6, flags: needsTasks | writes | fast, scope: edge.MayReceive, first: 1, last: 1, step: 1, run: runAck, batch: ackAll, repeats: true},
		&verb{name: "xnack", arity: -7, flags: needsTasks | writes | fast, scope: edge.MayReceive, first: 1, last: 1, step: 1, run: runNack},
		&verb{name: "xdel", arity: -3, flags: needsTasks | writes | fast, scope: edge.MayReceive, first: 1, last: 1, step: 1, run: runAck, batch: ackAll, repeats: true},
		&verb{name: "xclaim", arity: -6, flags: needsTasks | writes | fast, scope: edge.MayReceive, first: 1, last: 1, step: 1, run: runClaim},
		&verb{name: "xautoclaim", arity: -6, flags: needsTasks | writes | fast, scope: edge.MayReceive, first: 1, last: 1, step: 1, run: runAutoClaim},
		&verb{name: "xpending", arity: -3, flags: needsTasks, scope: edge.MayReceive | edge.MayRead, first: 1, last: 1, step: 1, run: runPending},
		&verb{name: "xlen", arity: 2, flags: needsTasks | fast, scope: edge.MayReceive | edge.MayRead, first: 1, last: 1, step: 1, run: runLen},
		&verb{name: "xgroup", arity: -2, scope: edge.MayReceive, subs: index(
			&verb{name: "create", arity: -5, flags: needsTasks | writes, scope: edge.MayReceive, first: 2, last: 2, step: 1, run: runGroupCreate},
			&verb{name: "destroy", arity: 4, flags: needsTasks | writes, scope: edge.MayAdmin, first: 2, last: 2, step: 1, run: runGroupDestroy},
			&verb{name: "setid", arity: -5, flags: needsTasks | writes, scope: edge.MayReceive, first: 2, last: 2, step: 1, run: runGroupSetID},
			&verb{name: "createconsumer", arity: 5, flags: needsTasks | writes, scope: edge.MayReceive, first: 2, last: 2, step: 1, run: runGroupCreateConsumer},
			&verb{name: "delconsumer", arity: 5, flags: needsTasks | writes, scope: edge.MayReceive, first: 2, last: 2, step: 1, run: runGroupDelConsumer},
			&verb{name: "help", arity: 2, scope: edge.AnyRight, run: runGroupHelp},
		)},
		&verb{name: "xinfo", arity: -2, scope: edge.MayReceive | edge.MayRead, subs: index(
			&verb{name: "stream", arity: -3, flags: needsTasks, scope: edge.MayReceive | edge.MayRead, first: 2, last: 2, step: 1, run: runInfoStream},
			&verb{name: "groups", arity: 3, flags: needsTasks, scope: edge.MayReceive | edge.MayRead, first: 2, last: 2, step: 1, run: runInfoGroups},
			&verb{name: "consumers", arity: 4, flags: needsTasks, scope: edge.MayReceive | edge.MayRead, first: 2, last: 2, step: 1, run: runInfoConsumers},
			&verb{name: "help", arity: 2, scope: edge.AnyRight, run: runInfoHelp},
		)},
		&verb{name: "xadd", arity: -5, flags: writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runNoEntries},
		&verb{name: "xtrim", arity: -4, flags: writes, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runNoEntries},
		&verb{name: "xsetid", arity: -3, flags: writes | fast, scope: edge.MaySchedule, first: 1, last: 1, step: 1, run: runNoEntries},
		&verb{name: "xread", arity: -4, flags: blocks, scope: edge.MayReceive, run: runNoReader},
		&verb{name: "xrange", arity: -4, scope: edge.MayReceive, first: 1, last: 1, step: 1, run: runNoReader},
		&verb{name: "xrevrange", arity: -4, scope: edge.MayReceive, first: 1, last: 1, step: 1, run: runNoReader},
	)
}
