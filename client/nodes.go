package client

import (
	"context"
	"net/http"
)

// NodeState is the state of a node as far as it is known.
type NodeState string

// The states of nodes.
const (
	NodeLive     NodeState = "live"     // it sends heartbeats
	NodeDraining NodeState = "draining" // it hands over its shards and then ends
	// NodeSilent: it sends no heartbeat. Once it counts as dead, and has no Status, other nodes
	// adopt its shards.
	NodeSilent NodeState = "silent"
	// NodeUnknown: the ledger, by which nodes hear of one another, does not answer the server that
	// was asked.
	NodeUnknown  NodeState = "unknown"
	NodeReleased NodeState = "released" // its last process has ended in order
)

// Nodes returns the nodes that share the server's ledger, by name; on a ledger of one
// node, that node. Errors: ErrUnavailable, ErrUnreachable.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	var answer struct {
		Nodes []Node `json:"nodes"`
	}
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/nodes", effect: reads}, &answer)
	return answer.Nodes, err
}

// Node returns a node by its name, with the keys under which Redis has the shards that it has made.
// Errors: ErrNoNode, ErrUnavailable, ErrUnreachable.
func (c *Client) Node(ctx context.Context, name string) (*Node, error) {
	n := &Node{}
	if err := c.onNode(ctx, call{method: http.MethodGet, effect: reads}, name, "", n); err != nil {
		return nil, err
	}
	return n, nil
}

// GiveUpSpools says, through any server of its ledger, that the missing spools of a node will not
// come back: their tasks count as lost.
//
// Errors: ErrNoNode, ErrUnavailable, ErrUnknown, ErrUnreachable. Repeating the call does no harm.
func (c *Client) GiveUpSpools(ctx context.Context, name string) error {
	return c.onNode(ctx, call{method: http.MethodDelete, effect: same}, name, "/missing-spools", nil)
}

// DrainNode has a node, through any server of its ledger, hand over its shards to the other nodes
// and end. It returns when the drain has begun; Nodes shows its progress.
//
// Errors: ErrNoNode, ErrNoSuccessor, ErrUnavailable, ErrUnknown, ErrUnreachable. Repeating the call
// does no harm.
func (c *Client) DrainNode(ctx context.Context, name string) error {
	return c.onNode(ctx, call{method: http.MethodPost, effect: same}, name, "/drain", nil)
}

func (c *Client) onNode(ctx context.Context, q call, name, rest string, into any) error {
	return c.named(ctx, q, "/v1/nodes/", "node", name, rest, into)
}
