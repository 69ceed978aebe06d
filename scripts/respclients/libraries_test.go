package respclients

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// A library is one that does with Redis more than its client does.
type library struct {
	program string // of testdata, which tries it
	step    string // that the program says it has done
	name    string
	does    string
	needs   string
	refused bool // it cannot work with Lapse, and its error says so
}

// libraries are those of the table in docs/redis.md, which TestLibraries tries.
var libraries = []library{
	{"python/libraries.py", "redis-py Lock", "redis-py `Lock`", "lock: acquire, extend, reacquire, release", "`SET NX PX`, scripts with `GET`, `DEL`, `PEXPIRE`, `PTTL`", false},
	{"python/libraries.py", "redis-py register_script", "redis-py `register_script`", "scripts of your own, also in a pipeline", "`EVALSHA`, `SCRIPT LOAD`, `SCRIPT EXISTS`", false},
	{"node/libraries.js", "redlock 5", "redlock 5 (npm)", "lock of several resources", "scripts with `EXISTS`, `SET PX`, `GET`, `DEL`", false},
	{"node/libraries.js", "redlock 4", "redlock 4 (npm)", "lock of several resources", "the same", false},
	{"node/libraries.js", "rate-limiter-flexible", "rate-limiter-flexible 11", "limit of calls, block, reward", "a script with `SET EX NX`, `INCRBY`, `PTTL`; `MULTI`", false},
	{"node/libraries.js", "rate-limit-redis", "rate-limit-redis 6, with express-rate-limit", "limit of requests", "scripts with `PTTL`, `SET PX`, `INCR`", false},
	{"node/libraries.js", "connect-redis", "connect-redis 9, with express-session", "sessions", "`SET EX`, `GET`, `EXPIRE`, `DEL`, `MGET`, `SCAN`", false},
	{"node/libraries.js", "ioredis defineCommand", "ioredis `defineCommand`", "scripts of your own, also in a pipeline and in `MULTI`", "`EVALSHA`, then `EVAL`", false},
	{"node/libraries.js", "node-redis defineScript", "node-redis `defineScript`", "scripts of your own, also in `MULTI`", "`EVALSHA`, then `EVAL`", false},
	{"node/libraries.js", "bullmq is refused", "bullmq 5", "queue of jobs", "lists, sorted sets, hashes", true},
	{"php/libraries.php", "phpredis session locking", "phpredis, `redis.session.locking_enabled`", "sessions, one request at a time", "`SET NX`, `SETEX`, a script with `GET`, `DEL`", false},
	{"php/libraries.php", "phpredis eval", "phpredis `eval`, `evalSha`", "scripts of your own", "`EVAL`, `EVALSHA`, `SCRIPT LOAD`", false},
	{"php/libraries.php", "Predis ScriptCommand", "Predis `ScriptCommand`, as in the locks of Laravel's cache", "lock, and a value that is added once", "`SET EX NX`, scripts with `GET`, `DEL`, `EXISTS`, `SETEX`", false},
	{"libraries/", "redsync", "redsync 4", "lock: lock, extend, unlock, valid", "`SET NX`, scripts with `GET`, `DEL`, `PEXPIRE`", false},
	{"libraries/", "bsm/redislock", "bsm/redislock 0.9", "lock: obtain, refresh, release, TTL", "`SET NX PX`, scripts with `GET`, `PEXPIRE`, `PTTL`, `DEL`", false},
	{"libraries/", "redis_rate", "redis_rate 10", "limit of calls by a leaky bucket", "a script with `GET`, `SET EX`, `TIME`, and arithmetic", false},
	{"libraries/", "go-redis Script", "go-redis `Script`", "scripts of your own", "`EVALSHA`, then `EVAL`; `EVALSHA_RO`", false},
}

var update = flag.Bool("update", false, "write the table in docs/redis.md anew")

// The table of libraries in docs/redis.md is that of the test.
func TestLibrariesAreDocumented(t *testing.T) {
	const file, begin, end = "../../docs/redis.md", "<!-- go test ./scripts/respclients -run TestLibrariesAreDocumented -update -->\n", "<!-- end of libraries -->\n"
	var table strings.Builder
	table.WriteString("\n| library | what it does | what it needs | works |\n| --- | --- | --- | --- |\n")
	for _, l := range libraries {
		works := "yes"
		if l.refused {
			works = "no: an error names this page"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", l.name, l.does, l.needs, works)
	}
	table.WriteString("\n")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, alsoOK := strings.Cut(rest, end)
	switch {
	case !ok || !alsoOK:
		t.Fatal("docs/redis.md has no place for the table")
	case old == table.String():
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("the table in docs/redis.md is not that of the test: run it with -update")
	}
}
