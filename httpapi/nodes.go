package httpapi

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Node is one of the nodes that share the ledger, as this node last saw it.
type Node struct {
	Name         string      `json:"name"`
	Self         bool        `json:"self" doc:"This server's own."`
	State        string      `json:"state" enum:"live,draining,silent,released" doc:"live: it shows signs of life. draining: it hands over what it holds, and ends then. silent: it shows none; others adopt what it holds, once it is taken for dead and has no status. released: its last process has ended in order."`
	HeartbeatAge duration    `json:"heartbeat_age" doc:"For how long this server has seen no sign of life."`
	Address      string      `json:"address,omitempty" doc:"Where it serves HTTP. Left out if it does not."`
	Version      string      `json:"version,omitempty" doc:"Of the program."`
	Process      string      `json:"process,omitempty" doc:"Which process, for people."`
	Shards       NodeShards  `json:"shards"`
	Status       *NodeStatus `json:"status,omitempty" doc:"What its memory had to say with its last sign of life. Left out if it shows none any more, or that is not known."`
}

// NodeShards are how many shards a node has.
type NodeShards struct {
	Own     int `json:"own" doc:"That it has made."`
	Held    int `json:"held" doc:"Of those, how many it holds; others hold the rest."`
	Adopted int `json:"adopted" doc:"Of other nodes, that it holds."`
}

// NodeStatus is what a node reports of its memory.
type NodeStatus struct {
	Pending    int64        `json:"pending"`
	Ready      int64        `json:"ready"`
	Delivering int64        `json:"delivering"`
	Dead       int64        `json:"dead"`
	Room       int          `json:"room" doc:"How many more tasks its memory takes."`
	Lateness   NodeLateness `json:"lateness"`
	CatchingUp bool         `json:"catching_up" doc:"It has not read all tasks yet that it holds."`
	Unsure     bool         `json:"unsure" doc:"It was cut off from the ledger for so long that others may have adopted what it holds."`
	Backlog    bool         `json:"backlog" doc:"More ready tasks wait than its sweep.backlog."`

	DrainsFailed int    `json:"drains_failed" doc:"How often it has given up to drain itself since it started. It takes no tasks from then on; asked again, it goes on."`
	DrainFault   string `json:"drain_fault,omitempty" doc:"Why, the last time."`
}

// NodeLateness is how late first attempts began since the start of the node.
type NodeLateness struct {
	P50 duration `json:"p50" doc:"Half of them were at most so late: the upper bound of a bucket. What is above the last one, 1h, is shown as that."`
	P99 duration `json:"p99"`
}

// NodeList is all nodes.
type NodeList struct {
	Nodes []Node `json:"nodes" nullable:"false"`
}

// nodes answers GET /v1/nodes.
func (s *Server) nodes(ctx context.Context, _ *struct{}) (*reply[NodeList], error) {
	list, err := s.wireNodes(ctx)
	return &reply[NodeList]{NodeList{list}}, err
}

func (s *Server) wireNodes(ctx context.Context) ([]Node, error) {
	all, err := s.scheduler.Nodes(ctx)
	list := make([]Node, len(all))
	for i := range all {
		list[i] = wireNode(&all[i])
		if all[i].Self && list[i].Version == "" {
			list[i].Version = s.version // a ledger of one node stores no version
		}
	}
	return list, err
}

func wireNode(n *tasks.Node) Node {
	wire := Node{
		Name: n.Name, Self: n.Self, State: string(n.State()),
		HeartbeatAge: duration(n.Silent.Round(time.Millisecond)),
		Address:      n.Address, Version: n.Version, Process: n.Process,
		Shards: NodeShards{n.Shards, n.Held, n.Adopted},
	}
	if t := n.Status; t != nil {
		wire.Status = &NodeStatus{
			Pending: t.Pending, Ready: t.Ready, Delivering: t.Delivering, Dead: t.Dead, Room: t.Room,
			Lateness:   NodeLateness{within(t.LatenessP50), within(t.LatenessP99)},
			CatchingUp: t.Catching, Unsure: t.Unsure, Backlog: t.Backlog,
			DrainsFailed: t.DrainsFailed, DrainFault: t.DrainFault,
		}
	}
	return wire
}

// within bounds a lateness by the last bucket, as other answers do.
func within(d time.Duration) duration {
	return duration(min(d, tasks.LatenessBounds[len(tasks.LatenessBounds)-1]))
}

type nodeInput struct {
	Node string `path:"node" doc:"Name of the node."`
}

// drain answers POST /v1/nodes/{node}/drain.
func (s *Server) drain(ctx context.Context, in *nodeInput) (*struct{}, error) {
	return nil, s.scheduler.DrainNode(ctx, in.Node)
}
