package task

import (
	"fmt"
	"time"
)

// FarClock is from which distance on the clocks of two nodes count as different. A task is due by
// the clock of the node that owns it, and may change its owner.
const FarClock = 100 * time.Millisecond

// A ClockReading is how far the clock of a node is ahead of that of the ledger's server.
type ClockReading struct {
	Ahead time.Duration `json:"ahead_ns"`
	Error time.Duration `json:"error_ns,omitempty"` // it may be as much more or less
}

// A ClockOffset is how far the clock of another node is from that of this one.
type ClockOffset struct {
	Node  string
	Ahead time.Duration // its clock minus this node's
	Far   bool          // it counts as different: it is FarClock or more, or was and is little less
}

// Compare returns how far the clock of another node is from that of this one. before is what it
// returned last. A distance that the error of the readings explains is none.
func (c *ClockReading) Compare(node string, o *ClockReading, before ClockOffset) ClockOffset {
	d := ClockOffset{Node: node, Ahead: o.Ahead - c.Ahead}
	sure, from := d.Ahead.Abs()-c.Error-o.Error, FarClock
	if before.Far {
		from = FarClock * 3 / 4
	}
	d.Far = sure >= from
	return d
}

// Warning is what an operator should know of the offset.
func (d *ClockOffset) Warning() string {
	way := "ahead of"
	if d.Ahead < 0 {
		way = "behind"
	}
	return fmt.Sprintf("the clock of node %s is %v %s that of this node: keep both in step (NTP), since tasks are due by the clock of the node that owns them",
		d.Node, d.Ahead.Abs().Round(time.Millisecond), way)
}
