package client

import (
	"context"
	"net/http"
)

// NodeState is the state of a node as far as it is known.
type NodeState string

// The states of nodes.
const (
	NodeLive     NodeState = "live"     // it shows signs of life
	NodeDraining NodeState = "draining" // it hands over its shards and then ends
	// NodeSilent: it shows no sign of life. Once it counts as dead, and has no Status, other nodes
	// adopt its shards.
	NodeSilent   NodeState = "silent"
	NodeReleased NodeState = "released" // its last process has ended in order
)

// Node is one of the nodes that share a ledger, as the called server last saw it.
type Node struct {
	Name  string    `json:"name"`
	Self  bool      `json:"self"` // the called server
	State NodeState `json:"state"`

	// HeartbeatAge is the time since the called server last saw a sign of life of the node.
	HeartbeatAge Duration `json:"heartbeat_age"`
	Address      string   `json:"address,omitempty"` // where it serves HTTP
	Version      string   `json:"version,omitempty"` // of the program
	Process      string   `json:"process,omitempty"` // in words, for people

	Shards NodeShards `json:"shards"`
	// Status is what the node reported with its last sign of life; nil if that is not known.
	Status *NodeStatus `json:"status,omitempty"`
}

// NodeShards are how many shards a node has.
type NodeShards struct {
	Own     int `json:"own"`     // shards that it has made
	Held    int `json:"held"`    // of those, how many it holds; other nodes hold the rest
	Adopted int `json:"adopted"` // shards of other nodes that it holds
}

// NodeStatus is what a node reports of its memory.
type NodeStatus struct {
	Pending    int64        `json:"pending"`
	Ready      int64        `json:"ready"`
	Delivering int64        `json:"delivering"`
	Dead       int64        `json:"dead"`
	Room       int          `json:"room"` // how many more tasks its memory takes
	Lateness   NodeLateness `json:"lateness"`
	CatchingUp bool         `json:"catching_up"` // it has not read all of its tasks yet
	Unsure     bool         `json:"unsure"`      // other nodes may have adopted its shards
	Backlog    bool         `json:"backlog"`     // more ready tasks wait than its sweep.backlog

	// How often the node has given up its own drain since it started, and why the last time.
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

// DrainNode has a node, through any server of its ledger, hand over its shards to the other nodes
// and end. It returns when the drain has begun; Nodes shows its progress.
//
// Errors: ErrNoNode, ErrNoHeir, ErrUnavailable, ErrUnknown, ErrUnreachable. Repeating the call does
// no harm.
func (c *Client) DrainNode(ctx context.Context, name string) error {
	path, err := pathOf("/v1/nodes/", "node", name)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, call{method: http.MethodPost, path: path + "/drain", effect: same}, nil)
	return err
}
