package cli

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// fleet starts servers that share a Redis, and returns a shell for each, by its name.
func fleet(t *testing.T, server *redistest.Server, names ...string) (shells map[string]*shell, stops map[string]func() int) {
	t.Helper()
	shells, stops = map[string]*shell{}, map[string]func() int{}
	for _, name := range names {
		url, stop := started(t, "--redis", server.URL(), "--node", name, "--handover", "--failover-after", "3s", "--redis-shards", "4")
		answered(t, http.StatusOK, get(url+"/readyz"))
		shells[name], stops[name] = &shell{t, url}, stop
	}
	return shells, stops
}

// state is what one server reports of the nodes.
func (s *shell) nodes() map[string]map[string]any {
	s.Helper()
	all := map[string]map[string]any{}
	for _, n := range s.lines("nodes") {
		all[n["name"].(string)] = n
	}
	return all
}

// Any node answers for any task. A node that is drained, or stopped with handover, leaves its tasks
// to the others, and ends with 0.
func TestNodes(t *testing.T) {
	server := redistest.Start(t)
	shells, stops := fleet(t, server, "n1", "n2", "n3")
	shells["n1"].ok("schedule", "x", "--id", "a", "--delay", "1h")
	shells["n2"].ok("schedule", "x", "--id", "b", "--delay", "1h")
	shells["n3"].prints([]string{"get", "a"}, "a\n")
	nodes := shells["n3"].nodes()
	if len(nodes) != 3 || nodes["n3"]["self"] != true || nodes["n1"]["state"] != "live" || nodes["n1"]["address"] != shells["n1"].url {
		t.Fatalf("got %v", nodes)
	}
	shells["n3"].prints([]string{"nodes"}, "NODE", "n1  ", "n3 *", "4 of 4")
	shells["n3"].fails(exitNotFound, []string{"nodes", "drain", "n4"}, "no such node")
	shells["n3"].fails(exitNotFound, []string{"nodes", "drain", "n4", "--wait"}, "no such node")
	shells["n3"].fails(exitNotFound, []string{"nodes", "give-up-spools", "n4"}, "no such node")
	shells["n3"].prints([]string{"nodes", "give-up-spools", "n1"}, "the missing spools of n1 are given up\n")

	shells["n3"].prints([]string{"nodes", "drain", "n1", "--wait"}, "n1 has handed over what it held\n")
	if code := stops["n1"](); code != exitOK {
		t.Errorf("the drained server ends with %d", code)
	}
	shells["n2"].prints([]string{"get", "a"}, "a\n")
	shells["n2"].prints([]string{"cancel", "a"}, "a is cancelled")

	if code := stops["n2"](); code != exitOK {
		t.Errorf("the server that was stopped ends with %d", code)
	}
	shells["n3"].prints([]string{"get", "b"}, "b\n")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	// As it last saw them.
	for nodes = shells["n3"].nodes(); nodes["n2"]["state"] != "released"; nodes = shells["n3"].nodes() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("got %v", nodes)
		}
	}
	if s := nodes["n3"]["shards"].(map[string]any); s["adopted"] != 8.0 || nodes["n1"]["state"] != "released" {
		t.Errorf("got %v", nodes)
	}
	shells["n3"].fails(exitConflict, []string{"nodes", "drain", "n3"}, "No other node can take over")
	if code := stops["n3"](); code != exitOK { // with no other node to hand over to
		t.Errorf("the last server ends with %d", code)
	}
}

// Any server shows the counts of all, or of itself alone. One that has handed over what it held is
// not missing.
func TestFiguresOfTheFleet(t *testing.T) {
	server := redistest.Start(t)
	shells, stops := fleet(t, server, "n1", "n2")
	n1 := shells["n1"]
	n1.ok("schedule", "x", "--id", "a", "--delay", "1h")
	shells["n2"].ok("schedule", "x", "--id", "b", "--delay", "1h")
	counts := func(s *shell, flags ...string) string {
		all := s.object(append([]string{"stats"}, flags...)...)
		return fmt.Sprint(all["total"].(map[string]any)["pending"], all["covers"], all["missing"])
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	until := func(wanted string) {
		t.Helper()
		for got := counts(n1); got != wanted; got = counts(n1) {
			select {
			case <-tick.C:
			case <-time.After(time.Minute):
				t.Fatalf("got %s", got)
			}
		}
	}
	until("2 [n1 n2] []") // answers are used again for a second
	if got := counts(n1, "--scope", "node"); !strings.HasSuffix(got, "[n1] []") {
		t.Errorf("got %s", got)
	}
	n1.prints([]string{"stats"}, "  counts of    n1, n2; the last 5 min without what n1, n2 had counted until ")
	n1.prints([]string{"topics", "get", "x", "--scope", "node"}, "node n1 alone")
	n1.prints([]string{"topics", "list"}, "x      2 ")
	n1.prints([]string{"topics", "list", "--sort", "worst", "--search", "X"}, "x      2 ")
	n1.fails(exitUsage, []string{"topics", "list", "--sort", "best"}, "sort")
	n1.prints([]string{"forecast", "--window", "2h"}, "#")
	n1.fails(exitUsage, []string{"stats", "--scope", "all"}, "scope")
	if code := stops["n2"](); code != exitOK {
		t.Errorf("the server that was stopped ends with %d", code)
	}
	until("2 [n1] []")
	var out strings.Builder
	warnOfMissing(&out, &client.Reach{Missing: []client.MissingNode{{Node: "n3", Error: "no heartbeat"}}})
	if out.String() != "\nWithout the figures of n3 (no heartbeat).\n" {
		t.Errorf("got %q", out.String())
	}
	if code := stops["n1"](); code != exitOK {
		t.Errorf("the last server ends with %d", code)
	}
}

// A server whose name another process has taken ends with 3: the systemd unit does not
// start it again, and the two do not evict each other for ever.
func TestNameTaken(t *testing.T) {
	server := redistest.Start(t)
	url, stop := started(t, "--redis", server.URL(), "--node", "a", "--failover-after", "1s")
	answered(t, http.StatusOK, get(url+"/readyz"))
	client := server.Client()
	raw, err := client.HGet(t.Context(), "lapse:nodes", "a").Result()
	if err != nil {
		t.Fatal(err)
	}
	var entry map[string]any
	if err := json.Unmarshal([]byte(raw), &entry); err != nil {
		t.Fatal(err)
	}
	entry["incarnation"], entry["generation"] = "another", entry["generation"].(float64)+1
	text, err := json.Marshal(entry)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.HSet(t.Context(), "lapse:nodes", "a", text).Err(); err != nil {
		t.Fatal(err)
	}
	answered(t, 0, get(url+"/healthz")) // no server answers
	if code := stop(); code != exitInUse {
		t.Errorf("it ended with %d", code)
	}
}

// The result of drain --wait for the states that it sees.
func TestDrainWaits(t *testing.T) {
	const one = `{"nodes":[{"name":"n1","state":%q,"process":%q,"self":%t}]}`
	gaveUp := func(times int) string {
		return fmt.Sprintf(`{"nodes":[{"name":"n1","state":"draining","process":"1","status":{"drains_failed":%d,"drain_fault":"no room"}}]}`, times)
	}
	for _, test := range []struct {
		answers []string // one after the other
		code    int
		text    string
	}{
		{[]string{fmt.Sprintf(one, "live", "1", false), fmt.Sprintf(one, "live", "1", false), fmt.Sprintf(one, "draining", "1", false), fmt.Sprintf(one, "released", "1", false)}, exitOK, ""},
		{[]string{fmt.Sprintf(one, "live", "1", false), fmt.Sprintf(one, "live", "2", false)}, exitOK, ""},
		{[]string{fmt.Sprintf(one, "live", "1", false), fmt.Sprintf(one, "silent", "1", false)}, exitUnavailable, "no heartbeat"},
		{[]string{gaveUp(1), gaveUp(1), gaveUp(2)}, exitUnavailable, "no room"},
		{[]string{fmt.Sprintf(one, "live", "1", true), ""}, exitFailed, "asked about itself"},
	} {
		s := canned(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPost:
				w.WriteHeader(http.StatusAccepted)
			case test.answers[0] == "":
				w.WriteHeader(http.StatusNotFound)
			default:
				fmt.Fprint(w, test.answers[0])
				test.answers = test.answers[1:]
			}
		})
		if test.code == exitOK {
			s.prints([]string{"nodes", "drain", "n1", "--wait"}, "n1 has handed over")
		} else {
			s.fails(test.code, []string{"nodes", "drain", "n1", "--wait"}, test.text)
		}
		if len(test.answers) > 0 && test.answers[0] != "" {
			t.Errorf("not asked: %s", strings.Join(test.answers, " "))
		}
	}
}

func TestAdvertised(t *testing.T) {
	for _, test := range []struct {
		set  settings
		want string
	}{
		{settings{}, "http://127.0.0.1:7480"},
		{settings{accessSettings: accessSettings{TLSCert: "cert.pem"}}, "https://127.0.0.1:7480"},
		{settings{nodeSettings: nodeSettings{Advertise: "http://lapse.example"}, accessSettings: accessSettings{TLSCert: "cert.pem"}}, "http://lapse.example"},
	} {
		if got := test.set.advertised(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7480}); got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}
