package respapi

// The table of all verbs. init, since COMMAND reads the table that it stands in.
func init() {
	verbs = index(
		// About the connection: connection.go, client.go, info.go.
		&verb{name: "hello", arity: -1, flags: noAuth | fast | notQueued, scope: anyScope, run: runHello},
		&verb{name: "auth", arity: -2, flags: noAuth | fast, scope: anyScope, run: runAuth},
		&verb{name: "ping", arity: -1, flags: fast | inSubscription, scope: anyScope, run: runPing},
		&verb{name: "echo", arity: 2, flags: fast, scope: anyScope, run: runEcho},
		&verb{name: "select", arity: 2, flags: fast, scope: anyScope, run: runSelect},
		&verb{name: "quit", arity: -1, flags: noAuth | fast | inSubscription | notQueued, scope: anyScope, run: runQuit},
		&verb{name: "reset", arity: 1, flags: noAuth | fast | inSubscription | notQueued, scope: anyScope, run: runReset},
		&verb{name: "time", arity: 1, flags: fast, scope: anyScope, run: runTime},

		// Transactions: multi.go.
		&verb{name: "multi", arity: 1, flags: fast | notQueued, scope: anyScope, run: runMulti},
		&verb{name: "exec", arity: 1, flags: notQueued, scope: anyScope, run: runExec},
		&verb{name: "discard", arity: 1, flags: fast | notQueued, scope: anyScope, run: runDiscard},
	)
}
