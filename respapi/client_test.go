package respapi_test

import (
	"bufio"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// What clients ask a server at first is answered as a real Redis answers it.
func TestClientVerbsAreThoseOfRedis(t *testing.T) {
	here := newRig(t, Config{}, tasks.Config{}).dial()
	nc, err := net.Dial("tcp", redistest.Start(t).Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
	there := &wire{t, nc, bufio.NewReader(nc)}
	for _, version := range []string{"2", "3"} {
		for _, w := range []*wire{here, there} {
			w.command("HELLO", version)
			w.answer()
		}
		for _, line := range []string{
			"CLIENT", "CLIENT FOO", "CLIENT GETNAME", "CLIENT SETNAME", "CLIENT SETNAME a\tb", "CLIENT SETNAME shop", "CLIENT GETNAME",
			"CLIENT ID 3", "CLIENT LIST TYPE pubsub", "CLIENT LIST TYPE master", "CLIENT LIST ID 77", "CLIENT LIST FOO", "CLIENT LIST TYPE x", "CLIENT LIST ID a",
			"CLIENT NO-EVICT x", "CLIENT NO-EVICT on", "CLIENT REPLY x", "CLIENT TRACKING off", "CLIENT TRACKING x", "CLIENT GETREDIR",
			"ROLE", "WAIT 0 0", "WAIT 1 1", "WAIT a 10", "WAIT 0 -1", "WAIT 0 a", "WAIT -1 0", "INFO nothing",
			"COMMAND FOO", "COMMAND GETKEYS", "COMMAND GETKEYS get", "COMMAND GETKEYS ping a", "COMMAND GETKEYS foo a", "COMMAND GETKEYS get a", "COMMAND GETKEYS get a b",
			"COMMAND GETKEYS mget a b c", "COMMAND GETKEYS mset a 1 b 2", "COMMAND DOCS foo", "COMMAND INFO foo", "COMMAND LIST FOO", "COMMAND LIST FILTERBY PATTERN",
			"COMMAND LIST FILTERBY PATTERN pexpiret*", "COMMAND LIST FILTERBY MODULE x", "COMMAND COUNT 1",
		} {
			args := strings.Split(line, " ")
			here.command(args...)
			there.command(args...)
			if got, want := here.answer(), there.answer(); got != want {
				t.Errorf("%s, version %s: the answer is %q, that of Redis %q", line, version, got, want)
			}
		}
		// What is silent stays so, as the order of the answers shows.
		for _, w := range []*wire{here, there} {
			w.send("CLIENT REPLY SKIP\r\nECHO 1\r\nECHO 2\r\nCLIENT REPLY OFF\r\nECHO 3\r\nCLIENT REPLY SKIP\r\nECHO 4\r\nCLIENT REPLY ON\r\nECHO 5\r\n")
			if got := w.answer() + w.answer() + w.answer(); got != "2+OK5" {
				t.Errorf("CLIENT REPLY: the answers are %q", got)
			}
		}
	}
}

// The form of COMMAND INFO is that of Redis: clients in Go and Java parse it.
func TestCommandInfo(t *testing.T) {
	w := newRig(t, Config{}, tasks.Config{}).dial()
	w.ask("*1 *10 get :2 *2 +readonly +fast :1 :1 :1 *3 +@read +@string +@fast *0 *0 *0", "COMMAND", "INFO", "get")
	w.ask("*1 *10 client|id :2 *2 +loading +stale :0 :0 :0 *2 +@connection +@slow *0 *0 *0", "COMMAND", "INFO", "client|id")
	w.command("COMMAND", "COUNT")
	count := strings.TrimPrefix(w.answer(), ":")
	w.command("COMMAND")
	if got := w.answer(); !strings.HasPrefix(got, "*"+count+" ") {
		t.Errorf("COMMAND begins %.20q, and COUNT is %s", got, count)
	}
	// Every verb is described, or redis-cli would show an empty line.
	w.command("COMMAND", "DOCS")
	if got := w.answer(); strings.Contains(got, "summary  since") {
		t.Errorf("a verb has no description: %s", got)
	}
	w.ask("*2 client|id *6 summary A container for client connection commands since 2.4.0 group connection", "COMMAND", "DOCS", "client|id", "client|id")
}

func TestClientList(t *testing.T) {
	w := newRig(t, Config{}, tasks.Config{}).dial()
	w.ask("+OK", "CLIENT", "SETNAME", "shop")
	w.ask("+OK", "CLIENT", "SETINFO", "LIB-NAME", "go-redis")
	w.ask("+OK", "CLIENT", "SETINFO", "lib-ver", "9.1")
	w.ask("-ERR lib-ver cannot contain spaces, newlines or special characters.", "CLIENT", "SETINFO", "lib-ver", "a b")
	w.ask("-ERR Unrecognized option 'colour'", "CLIENT", "SETINFO", "colour", "red")
	w.ask("-ERR Client tracking is not supported", "CLIENT", "TRACKING", "ON")
	for _, args := range [][]string{{"CLIENT", "LIST"}, {"CLIENT", "INFO"}, {"CLIENT", "LIST", "ID", "7", "1"}, {"CLIENT", "LIST", "TYPE", "normal"}} {
		w.command(args...)
		got := w.answer()
		for _, part := range []string{"id=1 addr=127.0.0.1:", " name=shop ", " flags=N db=0 sub=0 psub=0 ", " cmd=client|" + strings.ToLower(args[1]), " user=default ", " resp=2 lib-name=go-redis lib-ver=9.1\n"} {
			if !strings.Contains(got, part) {
				t.Errorf("%q is not in %q", part, got)
			}
		}
	}
}

func TestInfo(t *testing.T) {
	r := newRig(t, Config{Version: "1.2.3", MaxConnections: 77}, tasks.Config{})
	w := r.dial()
	w.ask("+OK", "SET", "kept", "v")
	w.ask("+OK", "SET", "ends", "v", "EX", "100")
	w.ask("-ERR syntax error", "SET", "ends", "v", "EX")
	w.command("INFO")
	all := w.answer()
	for _, line := range []string{"# Server", "redis_version:7.0.15", "lapse_version:1.2.3", "# Clients", "connected_clients:1", "maxclients:77", "loading:0",
		"total_connections_received:1", "total_commands_processed:3", "total_error_replies:1", "client_output_buffer_limit_disconnections:0", "lapse_events_unsent:0", "lapse_events_lost:0", "role:master", "# Keyspace", "db0:keys=2,expires=1,avg_ttl=0"} {
		if !strings.Contains(all, line+"\r\n") {
			t.Errorf("%q is not in %s", line, all)
		}
	}
	w.ask("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n# Keyspace\r\ndb0:keys=2,expires=1,avg_ttl=0\r\n", "INFO", "keyspace", "replication")
}

// What was done and what failed is counted by command; what clients invent has one name.
func TestCommandsAreCounted(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	w := r.dial()
	w.send("PING\r\nPING\r\nECHO\r\nCLIENT ID\r\nFOO\r\nBAR\r\nTTL a\r\nTTL b\r\n")
	for range 8 {
		w.answer()
	}
	w.ask("+PONG", "PING") // what came before is counted
	got := map[string][2]int64{}
	r.server.EachCommand(func(name string, done, failed int64, _ tasks.Latency) { got[name] = [2]int64{done, failed} })
	for name, want := range map[string][2]int64{"echo": {0, 1}, "client": {1, 0}, "unknown": {0, 2}, "ttl": {2, 0}} {
		if got[name] != want {
			t.Errorf("%s was done and failed %d times, want %d", name, got[name], want)
		}
	}
	if now, total := r.server.Connections(); now != 1 || total["accepted"] != 1 || total["bad_input"] != 0 {
		t.Errorf("connections: %d, %v", now, total)
	}
}

// Before the ledger has been reached, clients learn that the server is loading.
func TestInfoBeforeTheScheduler(t *testing.T) {
	server, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, server: server}
	r.addr = r.listen()
	t.Cleanup(func() { _ = server.Close(t.Context()) })
	w := r.dial()
	w.command("INFO")
	if got := w.answer(); !strings.Contains(got, "\r\nloading:1\r\n") || strings.Contains(got, "db0") {
		t.Errorf("INFO is %s", got)
	}
	w.ask("-LOADING Redis is loading the dataset in memory", "GET", "a")
	w.ask("+PONG", "PING")
}
