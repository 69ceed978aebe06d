package tasks

// A NodeState sums up what is known of a node.
type NodeState string

// The states of nodes.
const (
	NodeLive     NodeState = "live"     // it shows signs of life
	NodeDraining NodeState = "draining" // it does, and hands over what it holds
	NodeSilent   NodeState = "silent"   // it shows none: others adopt what it holds, once it is taken for dead
	NodeReleased NodeState = "released" // its last process has ended in order
)

// NodeStates are all states there are.
var NodeStates = []NodeState{NodeLive, NodeDraining, NodeSilent, NodeReleased}

// State sums up what is known of the node.
func (n *Node) State() NodeState {
	switch {
	case n.Released:
		return NodeReleased
	case !n.Live, n.Quiet:
		return NodeSilent
	case n.Status != nil && n.Status.Draining:
		return NodeDraining
	}
	return NodeLive
}
