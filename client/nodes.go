package client

import (
	"context"
	"net/http"
)

// NodeState says what is known of a node.
type NodeState string

// The states of nodes.
const (
	NodeLive     NodeState = "live"     // it shows signs of life
	NodeDraining NodeState = "draining" // it hands over what it holds, and ends then
	NodeSilent   NodeState = "silent"   // it shows no sign of life: others adopt what it holds, once it is taken for dead and has no Status
	NodeReleased NodeState = "released" // its last process has ended in order
)

// Node is one of the nodes that share a ledger, as the server that was asked last saw it.
type Node struct {
	Name  string    `json:"name"`
	Self  bool      `json:"self"` // the server that was asked
	State NodeState `json:"state"`

	// HeartbeatAge is for how long the server that was asked has seen no sign of life.
	HeartbeatAge Duration `json:"heartbeat_age"`
	Address      string   `json:"address,omitempty"` // where it serves HTTP
	Version      string   `json:"version,omitempty"` // of the program
	Process      string   `json:"process,omitempty"` // which one, for people

	Shards NodeShards `json:"shards"`
	// Status is what its memory had to say with its last sign of life; nil if that is not
	// known.
	Status *NodeStatus `json:"status,omitempty"`
}

// NodeShards are how many shards a node has.
type NodeShards struct {
	Own     int `json:"own"`     // that it has made
	Held    int `json:"held"`    // of those, how many it holds; others hold the rest
	Adopted int `json:"adopted"` // of other nodes, that it holds
}

// NodeStatus is what a node's memory has to say.
type NodeStatus struct {
	Pending    int64        `json:"pending"`
	Ready      int64        `json:"ready"`
	Delivering int64        `json:"delivering"`
	Dead       int64        `json:"dead"`
	Room       int          `json:"room"` // how many more tasks its memory takes
	Lateness   NodeLateness `json:"lateness"`
	CatchingUp bool         `json:"catching_up"` // it has not read all tasks yet that it holds
	Unsure     bool         `json:"unsure"`      // others may have adopted what it holds
	Backlog    bool         `json:"backlog"`     // more ready tasks wait than its sweep.backlog

	// How often it has given up to drain itself since it started, and why the last time.
	DrainsFailed int    `json:"drains_failed"`
	DrainFault   string `json:"drain_fault,omitempty"`
}

// NodeLateness is how late first attempts began since the node has started. Both are
// upper bounds.
type NodeLateness struct {
	P50 Duration `json:"p50"`
	P99 Duration `json:"p99"`
}

// Nodes returns the nodes that share the server's ledger, by name; on a ledger of one
// node, that node. Errors: ErrUnavailable, ErrUnreachable.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	var answer struct {
		Nodes []Node `json:"nodes"`
	}
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/nodes", effect: reads}, &answer)
	return answer.Nodes, err
}

// DrainNode has a node, by any server of its ledger, hand over what it holds to the others
// and end. It returns when the node has begun; Nodes tells how far it is.
//
// Errors: ErrNoNode, ErrNoHeir, ErrUnavailable, ErrUnknown, ErrUnreachable. Repeating
// the call does no harm.
func (c *Client) DrainNode(ctx context.Context, name string) error {
	path, err := pathOf("/v1/nodes/", "node", name)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, call{method: http.MethodPost, path: path + "/drain", effect: same}, nil)
	return err
}
