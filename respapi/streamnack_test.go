package respapi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/tasks"
)

// The verbs of streams that Redis has since 8.2 answer as its documentation says: the redis-server
// of most machines does not have them.

// TestStreamNack gives entries back: uncounted, as failed, for good.
func TestStreamNack(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, w *wire) {
		r.shortLease()
		r.expire("t", "k", 3)
		ids := w.read("a", 3)
		w.ask(":2", "XNACK", "expired:t", "g", "SILENT", "IDS", "3", ids[0], "1-1", ids[1])
		w.ask(":0", "XNACK", "expired:t", "g", "SILENT", "IDS", "2", ids[0], ids[1])
		w.ask(":0", "XACK", "expired:t", "g", ids[0])
		got := w.got("XREADGROUP", "GROUP", "g", "b", "STREAMS", "expired:t", ">")
		if again := idsOf(got); !slices.Equal(again, ids[:2]) || strings.Count(got, "attempt 1") != 2 {
			t.Errorf("after SILENT comes %q", got)
		}
		w.ask(":1", "XNACK", "expired:t", "g", "fail", "IDS", "1", ids[0], "RETRYCOUNT", "7", "FORCE")
		w.ask(":2", "XNACK", "expired:t", "g", "FATAL", "IDS", "2", ids[1], ids[2])
		time.Sleep(time.Second)
		if got := w.got("XREADGROUP", "GROUP", "g", "b", "STREAMS", "expired:t", ">"); len(idsOf(got)) != 1 || !strings.Contains(got, "attempt 2") {
			t.Errorf("after FAIL comes %q", got)
		}
		dead, err := r.scheduler.Get(t.Context(), "k2")
		if err != nil || dead.State != tasks.Dead || dead.LastError != "XNACK FATAL" {
			t.Errorf("after FATAL: %+v, %v", dead, err)
		}
		for command, answer := range map[string]string{
			"XNACK expired:t g MILD IDS 1 1-1":                 "-ERR syntax error",
			"XNACK expired:t g FAIL 1 1 1-1":                   "-ERR syntax error",
			"XNACK expired:t g FAIL IDS 0 1-1":                 "-ERR Number of IDs must be a positive integer",
			"XNACK expired:t g FAIL IDS x 1-1":                 "-ERR Number of IDs must be a positive integer",
			"XNACK expired:t g FAIL IDS 2 1-1":                 "-ERR The `numids` parameter must match the number of arguments",
			"XNACK expired:t g FAIL IDS 1 1-x":                 "-ERR Invalid stream ID specified as stream command argument",
			"XNACK expired:t g FAIL IDS 1 1-1 RETRYCOUNT x":    "-ERR value is not an integer or out of range",
			"XNACK expired:t g FAIL IDS 1 1-1 2-1":             "-ERR syntax error",
			"XNACK expired:t g FAIL IDS 1":                     "-ERR wrong number of arguments for 'xnack' command",
			"XNACK none g FAIL IDS 1 1-1":                      ":0",
			"XACKDEL none g IDS 2 1-1 1-2":                     "*2 :-1 :-1",
			"XACKDEL expired:t g KEEPREF IDS 2 1-1":            "-ERR The `numids` parameter must match the number of arguments",
			"XACKDEL expired:t g IDS 1 1-1 2-1":                "-ERR The `numids` parameter must match the number of arguments",
			"XACKDEL expired:t g ODD IDS 1 1-1":                "-ERR syntax error",
			"XREADGROUP GROUP g a CLAIM x STREAMS expired:t >": "-ERR min-idle-time is not an integer or out of range",
		} {
			w.ask(answer, strings.Fields(command)...)
		}
	})
}

// TestStreamAckDel acknowledges entries, each with its own answer.
func TestStreamAckDel(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, w *wire) {
		r.expire("t", "k", 4)
		ids := w.read("a", 4)
		w.ask("*3 :1 :-1 :-1", "XACKDEL", "expired:t", "g", "IDS", "3", ids[0], ids[0], "1-1")
		w.ask("*1 :1", "XACKDEL", "expired:t", "g", "DELREF", "IDS", "1", ids[1])
		w.ask("*1 :1", "XACKDEL", "expired:t", "g", "acked", "ids", "1", ids[2])
		w.ask("*4 :1 "+ids[3]+" "+ids[3]+" *1 *2 a 1", "XPENDING", "expired:t", "g")
		// In a pipeline they wait for the ledger together.
		w.send("XACKDEL expired:t g IDS 1 " + ids[3] + "\r\nXACK expired:t g " + ids[3] + "\r\nPING\r\n")
		for _, want := range []string{"*1 :1", ":0", "+PONG"} {
			if got := w.answer(); got != want {
				t.Errorf("answered %q, want %q", got, want)
			}
		}
	})
}

// TestStreamReadClaims takes over entries that are idle with the read of new ones.
func TestStreamReadClaims(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, w *wire) {
		r.expire("t", "k", 4)
		first := w.read("a", 1)
		time.Sleep(2 * time.Second)
		second := w.read("a", 1)
		time.Sleep(3 * time.Second)
		claim := func(least string, more ...string) string {
			args := append([]string{"XREADGROUP", "GROUP", "g", "b", "CLAIM", least}, more...)
			return w.got(append(args, "STREAMS", "expired:t", ">")...)
		}
		got := claim("3000", "COUNT", "3")
		if ids := idsOf(got); len(ids) != 3 || ids[0] != first[0] || ids[1] != second[0] ||
			!strings.Contains(got, " :5000 :1 ") || !strings.Contains(got, " :3000 :1 ") || !strings.HasSuffix(got, " :0 :0") {
			t.Errorf("two are idle and one is new: %q", got)
		}
		if got := claim("1000", "NOACK"); len(idsOf(got)) != 1 || !strings.HasSuffix(got, " :0 :0") {
			t.Errorf("the new one: %q", got)
		}
		if got := claim("1000"); got != "*-1" {
			t.Errorf("none is idle: %q", got)
		}
		time.Sleep(time.Second)
		if got := claim("1000", "NOACK", "COUNT", "1", "BLOCK", "0"); !strings.Contains(got, first[0]) || !strings.HasSuffix(got, " :1000 :2") {
			t.Errorf("idle again: %q", got)
		}
		list := w.got("XPENDING", "expired:t", "g", "-", "+", "10")
		if len(idsOf(list)) != 3 || strings.Count(list, " b ") != 3 {
			t.Errorf("out are %q", list)
		}
		// An id reads the consumer's own entries, as without CLAIM.
		if got := w.got("XREADGROUP", "GROUP", "g", "b", "CLAIM", "0", "COUNT", "1", "STREAMS", "expired:t", "0"); strings.Contains(got, " :") {
			t.Errorf("with an id: %q", got)
		}
	})
}

// TestMSetEx sets keys with one deadline.
func TestMSetEx(t *testing.T) {
	r, w := streamRig(t)
	_ = r
	w.asks(`MSETEX 2 a 1 b 2 EX 100 -> :1
		MGET a b -> *2 1 2
		TTL a -> :100
		TTL b -> :100
		MSETEX 2 a 3 c 4 NX EX 50 -> :0
		MGET a c -> *2 1 $-1
		MSETEX 2 a 3 c 4 XX -> :0
		MGET a c -> *2 1 $-1
		MSETEX 2 a 5 b 6 KEEPTTL XX -> :1
		TTL b -> :100
		MSETEX 2 a 5 b 6 XX -> :1
		TTL b -> :-1
		MSETEX 2 d 1 e 2 NX PX 100000 -> :1
		TTL e -> :100
		MSETEX 1 d 2 EXAT 2000000000 -> :1
		EXPIRETIME d -> :2000000000
		MSETEX 1 d 2 PXAT 2000000000500 -> :1
		PEXPIRETIME d -> :2000000000500
		MSETEX 2 f 1 f 2 -> :1
		GET f -> 2
		MSETEX 0 a 1 -> -ERR invalid numkeys value or out of range
		MSETEX x a 1 -> -ERR invalid numkeys value or out of range
		MSETEX 2 a 1 b -> -ERR syntax error
		MSETEX 1 a 1 b 2 -> -ERR syntax error
		MSETEX 1 a 1 NX XX -> -ERR syntax error
		MSETEX 1 a 1 GET -> -ERR syntax error
		MSETEX 1 a 1 IFEQ 1 -> -ERR syntax error
		MSETEX 1 a 1 EX 1 KEEPTTL -> -ERR syntax error
		MSETEX 1 a 1 EX 0 -> -ERR invalid expire time in 'msetex' command
		MSETEX 1 a 1 EX x -> -ERR value is not an integer or out of range
		MSETEX 1 a -> -ERR wrong number of arguments for 'msetex' command
		COMMAND GETKEYS MSETEX 2 a 1 b 2 EX 100 -> *2 a b
		MULTI -> +OK
		INCR n -> +QUEUED
		MSETEX 2 m 1 n 7 EX 100 -> +QUEUED
		INCR n -> +QUEUED
		EXEC -> *3 :1 :1 :8
		TTL n -> :100`)
}

// TestStreamNackGoRedis uses the verbs as a client of Redis has them.
func TestStreamNackGoRedis(t *testing.T) {
	r, _ := streamRig(t)
	for _, protocol := range []int{2, 3} {
		c := redis.NewClient(&redis.Options{Addr: r.addr, Protocol: protocol})
		r.expire("t", "k", 2)
		read := func() []redis.XMessage {
			streams, err := c.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: "g", Consumer: "a", Streams: []string{"expired:t", ">"}}).Result()
			if err != nil || len(streams) != 1 {
				t.Fatalf("XREADGROUP: %v, %v", streams, err)
			}
			return streams[0].Messages
		}
		first := read()
		if n, err := c.Do(t.Context(), "XNACK", "expired:t", "g", "SILENT", "IDS", 2, first[0].ID, first[1].ID).Int(); err != nil || n != 2 {
			t.Errorf("XNACK: %d, %v", n, err)
		}
		again := read()
		if len(again) != 2 || again[0].Values["attempt"] != "1" {
			t.Errorf("after XNACK: %v", again)
		}
		if states, err := c.XAckDel(t.Context(), "expired:t", "g", "DELREF", again[0].ID, again[1].ID).Result(); err != nil || !slices.Equal(states, []any{int64(1), int64(1)}) {
			t.Errorf("XACKDEL: %v, %v", states, err)
		}
		c.Close()
	}
}
