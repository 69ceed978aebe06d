//go:build browser

package browser

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/tasks"
)

// Which node is down, and which has its tasks.
func TestNodeDown(t *testing.T) {
	fleet := memfleet.New()
	member := fleet.Join("n1", 4)
	r := serveOn(t, member, tasks.Config{Node: "n1"}, httpapi.Config{})
	gone := fleet.Join("n2", 4)
	serveOn(t, gone, tasks.Config{Node: "n2"}, httpapi.Config{})
	gone.Crash()
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/nodes")
	p.shows("h1", "n2 is silent.")
	member.AdoptFrom(gone)
	p.shows("main", "Others hold its tasks.")
	p.shows("main", "holds 4 shards of other nodes")
	p.shows("#reach", "1 node, n2 silent")
	p.content()
}

// A node is drained.
func TestDrain(t *testing.T) {
	fleet := memfleet.New()
	r := serveOn(t, fleet.Join("n1", 4), tasks.Config{Node: "n1"}, httpapi.Config{})
	away := serveOn(t, fleet.Join("n2", 4), tasks.Config{Node: "n2"}, httpapi.Config{})
	away.schedule("order.unpaid", "", time.Hour)
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/nodes")
	p.press("Drain n2")
	p.shows("dialog", "It hands its 4 shards over")
	p.pressIn("dialog", "Drain")
	p.shows(".notices", "n2 drains.")
	<-away.Drained()
	p.shows("main", "holds 4 shards of other nodes")
	p.content()
}
