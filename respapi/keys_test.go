package respapi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// A step is a command and the answer that redis-server 7.0.15 gives, as wire.answer shows it.
type step struct{ command, want string }

// verbSteps are the steps of TestVerbs. Arguments are separated by spaces; ~ stands for a space in
// one, and an argument _ is empty.
var verbSteps = []step{
	{"SET a 1", "+OK"},
	{"GET a", "1"},
	{"GET none", "$-1"},
	{"SET a 2 NX", "$-1"},
	{"SET b 2 NX", "+OK"},
	{"SET c 1 XX", "$-1"},
	{"SET a 3 XX", "+OK"},
	{"SET a 4 GET", "3"},
	{"SET none2 4 GET", "$-1"},
	{"GET none2", "4"},
	{"SET a 5 NX GET", "4"},
	{"SET newkey 5 NX GET", "$-1"},
	{"GET newkey", "5"},
	{"SET zz 5 XX GET", "$-1"},
	{"EXISTS zz", ":0"},
	{"SET a 6 EX 100", "+OK"},
	{"TTL a", ":100"},
	{"SET a 7 KEEPTTL", "+OK"},
	{"TTL a", ":100"},
	{"SET a 8", "+OK"},
	{"TTL a", ":-1"},
	{"SET a 9 PX 100000 NX", "$-1"},
	{"SET a 9 PX 100000 XX", "+OK"},
	{"TTL a", ":100"},
	{"SET a 1 EX 10 PX 10", "-ERR syntax error"},
	{"SET a 1 EX 10 EX 20", "+OK"},
	{"TTL a", ":20"},
	{"SET a 1 EX 10 KEEPTTL", "-ERR syntax error"},
	{"SET a 1 KEEPTTL EX 10", "-ERR syntax error"},
	{"SET a 1 NX XX", "-ERR syntax error"},
	{"SET a 1 XX NX", "-ERR syntax error"},
	{"SET a 1 PERSIST", "-ERR syntax error"},
	{"SET a 1 FOO", "-ERR syntax error"},
	{"SET a 1 EX", "-ERR syntax error"},
	{"SET a 1 EX abc", "-ERR value is not an integer or out of range"},
	{"SET a 1 EX 0", "-ERR invalid expire time in 'set' command"},
	{"SET a 1 EX -1", "-ERR invalid expire time in 'set' command"},
	{"SET a 1 PX 0", "-ERR invalid expire time in 'set' command"},
	{"SET a 1 EX 9223372036854775807", "-ERR invalid expire time in 'set' command"},
	{"SET a 1 EX 92233720368547758070", "-ERR value is not an integer or out of range"},
	{"SET a 1 PX 9223372036854775807", "-ERR invalid expire time in 'set' command"},
	{"SET a 1 EX 1.5", "-ERR value is not an integer or out of range"},
	{"SET a 1 EX +5", "-ERR value is not an integer or out of range"},
	{"SET a 1 EX 05", "-ERR value is not an integer or out of range"},
	{"SET a 1 EX ~5", "-ERR value is not an integer or out of range"},
	{"SET a", "-ERR wrong number of arguments for 'set' command"},
	{"SET", "-ERR wrong number of arguments for 'set' command"},
	{"set a lower ex 50 xx get", "1"},
	{"GET a", "lower"},
	{"EXPIRETIME none", ":-2"},
	{"SET at 1 EXAT 2000000000", "+OK"},
	{"EXPIRETIME at", ":2000000000"},
	{"PEXPIRETIME at", ":2000000000000"},
	{"SET at 1 PXAT 1", "+OK"},
	{"SET at 1 PXAT 0", "-ERR invalid expire time in 'set' command"},
	{"SET at 1 PXAT 1 GET", "$-1"},
	{"GET at", "$-1"},
	{"SETEX s 100 v", "+OK"},
	{"TTL s", ":100"},
	{"SETEX s 0 v", "-ERR invalid expire time in 'setex' command"},
	{"SETEX s -5 v", "-ERR invalid expire time in 'setex' command"},
	{"SETEX s abc v", "-ERR value is not an integer or out of range"},
	{"SETEX s 9223372036854775807 v", "-ERR invalid expire time in 'setex' command"},
	{"PSETEX s 0 v", "-ERR invalid expire time in 'psetex' command"},
	{"PSETEX s 100000 v2", "+OK"},
	{"GET s", "v2"},
	{"TTL s", ":100"},
	{"PSETEX s x v", "-ERR value is not an integer or out of range"},
	{"SETNX s v3", ":0"},
	{"SETNX snx v3", ":1"},
	{"GET snx", "v3"},
	{"TTL snx", ":-1"},
	{"GETSET snx v4", "v3"},
	{"GETSET gs v5", "$-1"},
	{"GETSET gs v6", "v5"},
	{"SETEX s 100 v", "+OK"},
	{"GETSET s w", "v"},
	{"TTL s", ":-1"},
	{"STRLEN s", ":1"},
	{"STRLEN none", ":0"},
	{"APPEND ap hello", ":5"},
	{"APPEND ap ~world", ":11"},
	{"GET ap", "hello world"},
	{"STRLEN ap", ":11"},
	{"APPEND ap _", ":11"},
	{"APPEND ap3 _", ":0"},
	{"EXISTS ap3", ":1"},
	{"SETEX ap4 100 x", "+OK"},
	{"APPEND ap4 y", ":2"},
	{"TTL ap4", ":100"},
	{"GETRANGE ap 0 3", "hell"},
	{"GETRANGE ap -3 -1", "rld"},
	{"GETRANGE ap 0 -1", "hello world"},
	{"GETRANGE ap 10 100", "d"},
	{"GETRANGE ap 100 200", ""},
	{"GETRANGE ap 5 2", ""},
	{"GETRANGE ap -1 -5", ""},
	{"GETRANGE ap x 2", "-ERR value is not an integer or out of range"},
	{"GETRANGE none 0 -1", ""},
	{"GETRANGE ap -100 2", "hel"},
	{"GETRANGE ap -9223372036854775808 9223372036854775807", "hello world"},
	{"SUBSTR ap 1 2", "el"},
	{"SETRANGE ap 6 Redis", ":11"},
	{"GET ap", "hello Redis"},
	{"SETRANGE sr 3 abc", ":6"},
	{"STRLEN sr", ":6"},
	{"SETRANGE sr2 3 _", ":0"},
	{"EXISTS sr2", ":0"},
	{"SETRANGE ap 3 _", ":11"},
	{"SETRANGE ap -1 x", "-ERR offset is out of range"},
	{"SETRANGE ap x x", "-ERR value is not an integer or out of range"},
	{"SETRANGE ap 536870912 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"},
	{"INCR n", ":1"},
	{"INCR n", ":2"},
	{"INCRBY n 10", ":12"},
	{"DECR n", ":11"},
	{"DECRBY n 5", ":6"},
	{"DECRBY n -5", ":11"},
	{"INCRBY n abc", "-ERR value is not an integer or out of range"},
	{"INCRBY n 1.5", "-ERR value is not an integer or out of range"},
	{"DECRBY n -9223372036854775808", "-ERR decrement would overflow"},
	{"INCR ap", "-ERR value is not an integer or out of range"},
	{"SET n 9223372036854775807", "+OK"},
	{"INCR n", "-ERR increment or decrement would overflow"},
	{"INCRBY n -1", ":9223372036854775806"},
	{"DECRBY n 9223372036854775807", ":-1"},
	{"SET n -9223372036854775808", "+OK"},
	{"DECR n", "-ERR increment or decrement would overflow"},
	{"DECRBY n 1", "-ERR increment or decrement would overflow"},
	{"SET n ~1", "+OK"},
	{"INCR n", "-ERR value is not an integer or out of range"},
	{"SET n 01", "+OK"},
	{"INCR n", "-ERR value is not an integer or out of range"},
	{"SET n -0", "+OK"},
	{"INCR n", "-ERR value is not an integer or out of range"},
	{"SET n _", "+OK"},
	{"INCR n", "-ERR value is not an integer or out of range"},
	{"SETEX n 100 5", "+OK"},
	{"INCR n", ":6"},
	{"TTL n", ":100"},
	{"INCRBYFLOAT f 0.1", "0.1"},
	{"INCRBYFLOAT f 0.2", "0.3"},
	{"INCRBYFLOAT f 1e3", "1000.29999999999999999"},
	{"INCRBYFLOAT f abc", "-ERR value is not a valid float"},
	{"INCRBYFLOAT f -1000.3", "0"},
	{"INCRBYFLOAT f 3.0e3", "3000"},
	{"INCRBYFLOAT f -3000", "0"},
	{"INCRBYFLOAT f inf", "-ERR increment would produce NaN or Infinity"},
	{"INCRBYFLOAT f nan", "-ERR value is not a valid float"},
	{"INCRBYFLOAT f ~1", "-ERR value is not a valid float"},
	{"INCRBYFLOAT f _", "-ERR value is not a valid float"},
	{"INCRBYFLOAT f 0x10", "16"},
	{"INCRBYFLOAT f 1_0", "-ERR value is not a valid float"},
	{"INCRBYFLOAT f +1", "17"},
	{"INCRBYFLOAT f .5", "17.5"},
	{"INCRBYFLOAT f 5.", "22.5"},
	{"INCRBYFLOAT f 1e400", "10000000000000000000281880683947586514586453433629052038625910693539685534008629862039363994848324160522094053927317616200295822777259255734023828976593340661017797447434546173917862448116674971723778943824391593338047470675026246684401359237513603830343735485505244955964979021825038280091068414947402456898653040951017512658092615827588920183472511643316591362664138176309734806343732497430221946880"},
	{"INCRBYFLOAT f 1e5000", "-ERR value is not a valid float"},
	{"INCRBYFLOAT f2 10.50", "10.5"},
	{"INCRBYFLOAT f2 0.1", "10.6"},
	{"INCRBYFLOAT f2 -5.0e-1", "10.1"},
	{"SET f3 5.0e3", "+OK"},
	{"INCRBYFLOAT f3 2.0e2", "5200"},
	{"SET f3 3", "+OK"},
	{"INCRBYFLOAT f3 1.1", "4.1"},
	{"INCRBYFLOAT f3 1e17", "100000000000000004.1015625"},
	{"INCRBYFLOAT f3 -1e-17", "100000000000000004.1015625"},
	{"INCRBYFLOAT ap 1", "-ERR value is not a valid float"},
	{"INCRBYFLOAT f4 0", "0"},
	{"INCRBYFLOAT f4 -0.0", "0"},
	{"MSET m1 1 m2 2", "+OK"},
	{"MSET m1 1 m2", "-ERR wrong number of arguments for 'mset' command"},
	{"MSET m1", "-ERR wrong number of arguments for 'mset' command"},
	{"MGET m1 m2 none m1", "*4 1 2 $-1 1"},
	{"MGET", "-ERR wrong number of arguments for 'mget' command"},
	{"MSETNX m1 1 m9 2", ":0"},
	{"EXISTS m9", ":0"},
	{"MSETNX m8 1 m9 2 m8 3", ":1"},
	{"MGET m8 m9", "*2 3 2"},
	{"MSETNX m8 1 m9", "-ERR wrong number of arguments for 'msetnx' command"},
	{"MSET mm 1 mm 2", "+OK"},
	{"GET mm", "2"},
	{"GETDEL mm", "2"},
	{"GETDEL mm", "$-1"},
	{"GETDEL", "-ERR wrong number of arguments for 'getdel' command"},
	{"GETEX m1 EX 100", "1"},
	{"TTL m1", ":100"},
	{"GETEX m1", "1"},
	{"TTL m1", ":100"},
	{"GETEX m1 PERSIST", "1"},
	{"TTL m1", ":-1"},
	{"GETEX m1 PERSIST", "1"},
	{"GETEX m1 EX 0", "-ERR invalid expire time in 'getex' command"},
	{"GETEX m1 EX abc", "-ERR value is not an integer or out of range"},
	{"GETEX none EX 0", "$-1"},
	{"GETEX none EX abc", "$-1"},
	{"GETEX none FOO", "-ERR syntax error"},
	{"GETEX m1 EX 10 PERSIST", "-ERR syntax error"},
	{"GETEX m1 PERSIST EX 10", "-ERR syntax error"},
	{"GETEX m1 KEEPTTL", "-ERR syntax error"},
	{"GETEX m1 NX", "-ERR syntax error"},
	{"GETEX m1 PXAT 1", "1"},
	{"GET m1", "$-1"},
	{"GETEX m2 PX 100000", "2"},
	{"TTL m2", ":100"},
	{"GETEX m2 EXAT 2000000000", "2"},
	{"EXPIRETIME m2", ":2000000000"},
	{"EXPIRE m2 200", ":1"},
	{"TTL m2", ":200"},
	{"EXPIRE m2 100 NX", ":0"},
	{"EXPIRE m2 100 XX", ":1"},
	{"TTL m2", ":100"},
	{"EXPIRE m2 50 GT", ":0"},
	{"EXPIRE m2 150 GT", ":1"},
	{"EXPIRE m2 200 LT", ":0"},
	{"EXPIRE m2 90 LT", ":1"},
	{"TTL m2", ":90"},
	{"EXPIRE m2 90 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible"},
	{"EXPIRE m2 90 GT LT", "-ERR GT and LT options at the same time are not compatible"},
	{"EXPIRE m2 90 NX GT", "-ERR NX and XX, GT or LT options at the same time are not compatible"},
	{"EXPIRE m2 90 XX GT", ":0"},
	{"EXPIRE m2 95 XX LT", ":0"},
	{"EXPIRE m2 90 FOO", "-ERR Unsupported option FOO"},
	{"EXPIRE m2 abc", "-ERR value is not an integer or out of range"},
	{"EXPIRE m2 abc FOO", "-ERR Unsupported option FOO"},
	{"EXPIRE m2 9223372036854775807", "-ERR invalid expire time in 'expire' command"},
	{"EXPIRE m2 -9223372036854775808", "-ERR invalid expire time in 'expire' command"},
	{"EXPIRE m2 x", "-ERR value is not an integer or out of range"},
	{"EXPIRE none 100", ":0"},
	{"EXPIRE none abc", "-ERR value is not an integer or out of range"},
	{"PERSIST m2", ":1"},
	{"PERSIST m2", ":0"},
	{"TTL m2", ":-1"},
	{"PTTL m2", ":-1"},
	{"EXPIRETIME m2", ":-1"},
	{"PEXPIRETIME m2", ":-1"},
	{"EXPIRE m2 100 XX", ":0"},
	{"EXPIRE m2 100 GT", ":0"},
	{"EXPIRE m2 100 LT", ":1"},
	{"TTL m2", ":100"},
	{"PERSIST m2", ":1"},
	{"EXPIRE m2 100 NX", ":1"},
	{"PERSIST none", ":0"},
	{"TTL none", ":-2"},
	{"PTTL none", ":-2"},
	{"PEXPIRETIME none", ":-2"},
	{"PEXPIRE m2 100000", ":1"},
	{"TTL m2", ":100"},
	{"EXPIREAT m2 2000000000", ":1"},
	{"EXPIRETIME m2", ":2000000000"},
	{"PEXPIREAT m2 2000000000500", ":1"},
	{"EXPIRETIME m2", ":2000000001"},
	{"PEXPIRETIME m2", ":2000000000500"},
	{"PEXPIREAT m2 2000000000499", ":1"},
	{"EXPIRETIME m2", ":2000000000"},
	{"EXPIRE m2 0", ":1"},
	{"GET m2", "$-1"},
	{"SET m2 1", "+OK"},
	{"EXPIRE m2 -1", ":1"},
	{"EXISTS m2", ":0"},
	{"SET m2 1", "+OK"},
	{"EXPIREAT m2 1", ":1"},
	{"EXISTS m2", ":0"},
	{"SET m2 1", "+OK"},
	{"PEXPIRE m2 -9223372036854775808", ":1"},
	{"DEL m2 none", ":0"},
	{"SET d1 1", "+OK"},
	{"SET d2 1", "+OK"},
	{"DEL d1 d2 d1 none", ":2"},
	{"SET d1 1", "+OK"},
	{"UNLINK d1", ":1"},
	{"EXISTS d1", ":0"},
	{"SET d1 1", "+OK"},
	{"EXISTS d1 d1 none", ":2"},
	{"TOUCH d1 none", ":1"},
	{"TYPE d1", "+string"},
	{"TYPE none", "+none"},
	{"DEL", "-ERR wrong number of arguments for 'del' command"},
	{"RENAME none x", "-ERR no such key"},
	{"RENAME d1 r1", "+OK"},
	{"GET r1", "1"},
	{"EXISTS d1", ":0"},
	{"RENAME r1 r1", "+OK"},
	{"RENAME none none", "-ERR no such key"},
	{"RENAMENX r1 r1", ":0"},
	{"SETEX r2 100 v", "+OK"},
	{"RENAMENX r1 r2", ":0"},
	{"RENAMENX r1 r3", ":1"},
	{"GET r3", "1"},
	{"RENAMENX none r9", "-ERR no such key"},
	{"RENAME r2 r3", "+OK"},
	{"GET r3", "v"},
	{"TTL r3", ":100"},
	{"COPY r3 c1", ":1"},
	{"GET c1", "v"},
	{"TTL c1", ":100"},
	{"COPY r3 c1", ":0"},
	{"COPY r3 c1 REPLACE", ":1"},
	{"COPY r3 r3", "-ERR source and destination objects are the same"},
	{"COPY none c2", ":0"},
	{"COPY r3 c3 DB 0", ":1"},
	{"COPY r3 c3 DB abc", "-ERR value is not an integer or out of range"},
	{"COPY r3 c3 DB 77", "-ERR DB index is out of range"},
	{"COPY r3 c3 FOO", "-ERR syntax error"},
	{"SCAN abc", "-ERR invalid cursor"},
	{"SCAN 0 COUNT 0", "-ERR syntax error"},
	{"SCAN 0 COUNT abc", "-ERR value is not an integer or out of range"},
	{"SCAN 0 FOO", "-ERR syntax error"},
	{"SCAN 0 FOO bar", "-ERR syntax error"},
	{"SCAN 0 MATCH", "-ERR syntax error"},
	{"KEYS r3", "*1 r3"},
	{"KEYS nomatch*", "*0"},
	{"KEYS c[12]", "*1 c1"},
	{"KEYS", "-ERR wrong number of arguments for 'keys' command"},
	{"FLUSHDB FOO", "-ERR syntax error"},
	{"FLUSHALL SYNC ASYNC", "-ERR syntax error"},
	{"SET bin~key~* v", "+OK"},
	{"GET bin~key~*", "v"},
	{"KEYS bin~key*", "*1 bin key *"},
	{"SET _ emptykey", "+OK"},
	{"GET _", "emptykey"},
	{"TYPE _", "+string"},
	{"DEL _", ":1"},
	{"MULTI", "+OK"},
	{"SET t1 a", "+QUEUED"},
	{"INCR t1", "+QUEUED"},
	{"INCR t2", "+QUEUED"},
	{"EXEC", "*3 +OK -ERR value is not an integer or out of range :1"},
	{"MULTI", "+OK"},
	{"SET t1", "-ERR wrong number of arguments for 'set' command"},
	{"EXEC", "-EXECABORT Transaction discarded because of previous errors."},
	{"WATCH t1", "+OK"},
	{"MULTI", "+OK"},
	{"WATCH t1", "-ERR WATCH inside MULTI is not allowed"},
	{"UNWATCH", "+QUEUED"},
	{"EXEC", "*1 +OK"},
	{"WATCH t1", "+OK"},
	{"SET t1 b", "+OK"},
	{"MULTI", "+OK"},
	{"GET t1", "+QUEUED"},
	{"EXEC", "*-1"},
	{"GET t1", "b"},
	{"WATCH t1", "+OK"},
	{"UNWATCH", "+OK"},
	{"SET t1 c", "+OK"},
	{"MULTI", "+OK"},
	{"GET t1", "+QUEUED"},
	{"EXEC", "*1 c"},
	{"WATCH t9", "+OK"},
	{"MULTI", "+OK"},
	{"SET t9 1", "+QUEUED"},
	{"EXEC", "*1 +OK"},
	{"WATCH t9", "+OK"},
	{"DISCARD", "-ERR DISCARD without MULTI"},
	{"MULTI", "+OK"},
	{"DISCARD", "+OK"},
	{"SET t9 2", "+OK"},
	{"MULTI", "+OK"},
	{"PING", "+QUEUED"},
	{"EXEC", "*1 +PONG"},
	{"WATCH", "-ERR wrong number of arguments for 'watch' command"},
	{"UNWATCH x", "-ERR wrong number of arguments for 'unwatch' command"},
	{"SUBSTR r3 0 0 0", "-ERR wrong number of arguments for 'substr' command"},
	{"INCRBY n", "-ERR wrong number of arguments for 'incrby' command"},
	{"SETRANGE new2 0 abc", ":3"},
	{"GETRANGE new2 1 1", "b"},
	{"APPEND n 0", ":2"},
	{"INCR n", ":61"},
}

// words returns the arguments of a step.
func (s *step) words() []string {
	words := strings.Split(s.command, " ")
	for i := range words {
		if words[i] = strings.ReplaceAll(words[i], "~", " "); words[i] == "_" {
			words[i] = ""
		}
	}
	return words
}

// TestVerbs compares the answers of the verbs of keys with those that redis-server has given.
func TestVerbs(t *testing.T) {
	w := newRig(t, Config{Flush: true}, tasks.Config{}).dial()
	for _, s := range verbSteps {
		w.ask(s.want, s.words()...)
	}
}

// TestVerbsOfRedis makes sure that redis-server gives the answers of TestVerbs.
func TestVerbsOfRedis(t *testing.T) {
	w := dialRedis(t)
	var list bytes.Buffer
	for _, s := range verbSteps {
		w.command(s.words()...)
		got := w.answer()
		fmt.Fprintf(&list, "\t{%q, %q},\n", s.command, got)
		if got != s.want {
			t.Errorf("%s: redis-server answers %q, not %q", s.command, got, s.want)
		}
	}
	if path := os.Getenv("LAPSE_TEST_VERBS"); path != "" {
		if err := os.WriteFile(path, list.Bytes(), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// dialRedis starts a redis-server without data.
func dialRedis(t *testing.T) *wire {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed")
	}
	socket := t.TempDir() + "/redis.sock"
	server := exec.Command(path, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	var nc net.Conn
	for range 500 {
		if nc, err = net.Dial("unix", socket); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
	return &wire{t, nc, bufio.NewReader(nc)}
}
