package httpapi

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/tasks"
)

// eventFleet is three servers of one ledger, each with the tokens of guarded and one that is
// limited to the topics own.*.
func eventFleet(t *testing.T) (all []*rig, members []*memfleet.Member) {
	fleet := memfleet.New()
	own := tokenOf("own", edge.ScopeRead)
	own.Topics = []string{"own.*"}
	tokens := []edge.Token{own}
	for _, s := range edge.Scopes {
		tokens = append(tokens, tokenOf(string(s), s))
	}
	for i, name := range []string{"n1", "n2", "n3"} {
		members = append(members, fleet.Join(name, 2))
		all = append(all, newRigOn(t, members[i], tasks.Config{Node: name}, Config{Callers: callersOf(tokens...), Log: slog.New(slog.DiscardHandler)}))
	}
	return all, members
}

// news reads so many events, and returns them by node, as "kind id".
func (s *stream) news(count int) map[string][]string {
	s.Helper()
	by := map[string][]string{}
	for range count {
		e, err := s.next()
		if err != nil {
			s.Fatalf("after %v: %v", by, err)
		}
		text := e.kind
		switch {
		case e.ID != "":
			text += " " + e.ID
		case e.kind == "missing":
			text += ", " + e.Error
		case e.Gap:
			text += " after a gap"
		}
		by[e.Node] = append(by[e.Node], text)
	}
	return by
}

// A stream has the events of all nodes, and says of which. With scope=node it has those of the node
// that is asked. A limited token sees its own topics, at each node.
func TestEventsOfAllNodes(t *testing.T) {
	t.Parallel()
	all, members := eventFleet(t)
	streams := map[string]*stream{}
	for name, path := range map[string]string{"all": eventsPath, "own": eventsPath + "?scope=node", "dead": eventsPath + "?scope=fleet&topic=own.b&kind=cancelled"} {
		streams[name] = all[0].listen(path, bearer("admin"))
	}
	streams["limited"] = all[1].listen(eventsPath, bearer("own"))
	for i, r := range all {
		for _, topic := range []string{"own.b", "theirs"} {
			body := fmt.Sprintf(`{"id":"%s-%d","topic":"%s","delay":"1h"}`, topic, i+1, topic)
			r.want(r.do("POST", "/v1/tasks", body, bearer("admin")), 201)
		}
	}
	all[1].want(all[1].do("DELETE", "/v1/tasks/own.b-3", "", bearer("admin")), 204)
	wanted := map[string]struct {
		asked  string
		counts map[string]int
	}{
		"all":     {"n1", map[string]int{"n1": 2, "n2": 2, "n3": 3}},
		"own":     {"n1", map[string]int{"n1": 2}},
		"dead":    {"n1", map[string]int{"n3": 1}},
		"limited": {"n2", map[string]int{"n1": 1, "n2": 1, "n3": 2}},
	}
	for name, w := range wanted {
		count := 0
		for _, n := range w.counts {
			count += n
		}
		if name != "own" {
			count += 2 // the other nodes are covered
		}
		got := streams[name].news(count)
		for _, node := range []string{"n1", "n2", "n3"} {
			heard := got[node]
			if name != "own" && node != w.asked {
				if len(heard) == 0 || heard[0] != "covered" {
					t.Errorf("%s: of %s told %q", name, node, heard)
					continue
				}
				heard = heard[1:]
			}
			if len(heard) != w.counts[node] {
				t.Errorf("%s: of %s told %q", name, node, heard)
			}
			if name == "limited" && slices.ContainsFunc(heard, func(e string) bool { return e != "scheduled own.b-"+node[1:] && e != "cancelled own.b-3" }) {
				t.Errorf("a limited token is told %q", heard)
			}
		}
	}
	members[2].Crash()
	for _, name := range []string{"all", "limited"} {
		got := streams[name].news(1)["n3"]
		if len(got) != 1 || got[0] != "missing, no answer" && got[0] != "missing, no heartbeat" {
			t.Errorf("%s: told %q", name, got)
		}
	}
	for _, s := range streams {
		s.body.Close()
	}
	all[0].streams(0)
	all[0].refused(all[0].do("GET", eventsPath+"?scope=all", "", bearer("admin")), 422, "invalid", "scope")
	all[0].want(all[0].do("HEAD", eventsPath, "", bearer("admin")), 200)
}

// A server that ends while a stream waits for the other nodes answers at once that it ends.
func TestCloseEndsAnEventStreamThatBegins(t *testing.T) {
	t.Parallel()
	all, members := eventFleet(t)
	for _, m := range members[1:] {
		m.Cut(true)
	}
	r := all[0]
	answers := make(chan answer, 1)
	go func() { answers <- r.do("GET", eventsPath, "", bearer("admin")) }()
	for r.api.openStreams() == 0 {
	}
	r.api.Close()
	if a := <-answers; a.status != 503 && a.status != 200 {
		t.Errorf("answered %d", a.status)
	}
	r.streams(0)
}
