package task

import "time"

// FarClock is from which distance on the clocks of two nodes count as different. A task is due by
// the clock of the node that owns it, and may change its owner.
const FarClock = 100 * time.Millisecond

// A ClockOffset is how far the clock of another node is from that of this one.
type ClockOffset struct {
	Node  string
	Ahead time.Duration // its clock minus this node's
	Far   bool          // it is FarClock or more, or was so and is not much less
}
