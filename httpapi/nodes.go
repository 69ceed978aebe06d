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
	State        string      `json:"state" enum:"live,draining,silent,unknown,released" doc:"live: it sends heartbeats. draining: it hands over its shards and then ends. silent: it sends none; once it counts as dead and has no status, other nodes adopt its shards. unknown: the ledger, by which nodes hear of one another, does not answer this server. released: its last process has ended in order."`
	HeartbeatAge duration    `json:"heartbeat_age" doc:"Time since this server last saw a heartbeat of the node, whatever the cause."`
	Address      string      `json:"address,omitempty" doc:"Where it serves HTTP. Left out if it does not."`
	Version      string      `json:"version,omitempty" doc:"Of the program."`
	Process      string      `json:"process,omitempty" doc:"The process, in words."`
	Shards       NodeShards  `json:"shards"`
	Status       *NodeStatus `json:"status,omitempty" doc:"What the node reported with its last heartbeat. Left out if the node is silent, or its report is not known. Also for a token that is limited to some topics: the report counts the tasks of all."`

	MissingSpools []string `json:"missing_spools,omitempty" nullable:"false" doc:"Names of former spools that may have tasks: the node was started with another one, or with none. While there are any, ids of its shards that are not found are answered 503, and so are lists. Left out if there are none."`

	Stored []StoredShard `json:"stored,omitempty" nullable:"false" doc:"Where its own shards are in Redis. Only in the answer about one node; not for a token that is limited to some topics."`
}

// StoredShard is where the ledger keeps a shard of a node, and how much of it.
type StoredShard struct {
	Pending string `json:"pending" doc:"Key of the set of the ids of unfinished tasks, in Redis. One member, !, is no id."`
	Tasks   string `json:"tasks" doc:"Key of the hash of their records."`
	Count   int64  `json:"count" doc:"Unfinished tasks."`
	Owner   string `json:"owner,omitempty" doc:"The node that has the shard now. Left out if there is none, or if it could not be read."`
}

// NodeShards are how many shards a node has.
type NodeShards struct {
	Own     int `json:"own" doc:"Shards that it has made."`
	Held    int `json:"held" doc:"Of those, how many it holds; other nodes hold the rest."`
	Adopted int `json:"adopted" doc:"Shards of other nodes that it holds."`
}

// NodeStatus is what a node reports of its memory.
type NodeStatus struct {
	Pending    int64        `json:"pending"`
	Ready      int64        `json:"ready"`
	Delivering int64        `json:"delivering"`
	Dead       int64        `json:"dead"`
	Room       int          `json:"room" doc:"How many more tasks its memory takes."`
	Lateness   NodeLateness `json:"lateness"`
	CatchingUp bool         `json:"catching_up" doc:"The node has not read all of its tasks yet."`
	Unsure     bool         `json:"unsure" doc:"The node was cut off from the ledger for so long that other nodes may have adopted its shards."`
	Backlog    bool         `json:"backlog" doc:"More ready tasks wait than the node's sweep.backlog."`

	DrainsFailed int    `json:"drains_failed" doc:"How often the node has given up its own drain since it started. It takes no tasks from then on. Another drain request resumes the drain."`
	DrainFault   string `json:"drain_fault,omitempty" doc:"Why it gave up the last time."`
}

// NodeLateness is how late first attempts began since the start of the node.
type NodeLateness struct {
	P50 duration `json:"p50" doc:"Half of them were at most this late: the upper bound of a bucket. A value above the last bound, 1h, is shown as 1h."`
	P99 duration `json:"p99"`
}

// NodeList is all nodes.
type NodeList struct {
	Nodes []Node `json:"nodes" nullable:"false"`
}

// nodes answers GET /v1/nodes.
func (s *Server) nodes(ctx context.Context, _ *struct{}) (*reply[NodeList], error) {
	list, err := s.wireNodes(ctx)
	if limit := tasks.GrantOf(ctx); limit != nil && len(limit.Topics) > 0 {
		for i := range list {
			list[i].Status = nil
		}
	}
	return &reply[NodeList]{NodeList{list}}, err
}

// node answers GET /v1/nodes/{node}.
func (s *Server) node(ctx context.Context, in *nodeInput) (*reply[Node], error) {
	n, err := s.scheduler.Node(ctx, in.Node)
	wire := wireNode(&n)
	if n.Self && wire.Version == "" {
		wire.Version = s.version
	}
	if limit := tasks.GrantOf(ctx); limit != nil && len(limit.Topics) > 0 {
		wire.Status, wire.Stored = nil, nil
	}
	return &reply[Node]{wire}, err
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
		Shards: NodeShards{n.Shards, n.Held, n.Adopted}, MissingSpools: n.MissingSpools,
	}
	for _, shard := range n.Stored {
		wire.Stored = append(wire.Stored, StoredShard(shard))
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
	request
	Node string `path:"node" doc:"Name of the node."`
}

// giveUpSpools answers DELETE /v1/nodes/{node}/missing-spools.
func (s *Server) giveUpSpools(ctx context.Context, in *nodeInput) (*struct{}, error) {
	err := s.scheduler.GiveUpSpools(ctx, in.Node)
	s.record(in.gin, tasks.AuditEntry{Verb: "give-up-spools", Target: in.Node}, err)
	return nil, err
}

// drain answers POST /v1/nodes/{node}/drain.
func (s *Server) drain(ctx context.Context, in *nodeInput) (*struct{}, error) {
	err := s.scheduler.DrainNode(ctx, in.Node)
	s.record(in.gin, tasks.AuditEntry{Verb: "drain", Target: in.Node}, err)
	return nil, err
}
