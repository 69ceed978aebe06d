package httpapi

import "github.com/lapsehq/lapse/tasks"

// The scopes of figures.
const (
	scopeFleet = "fleet"
	scopeNode  = "node"
)

// reachAbout is part of what the routes of figures say.
const reachAbout = "A node that does not answer within a second is named in missing. What other nodes have answered may be a second old. With scope=node the figures are those of the node that is asked alone."

// ScopeInput chooses whose figures are answered. It is exported because huma looks for parameters
// in no other embedded fields.
type ScopeInput struct {
	Scope string `query:"scope" enum:"fleet,node" default:"fleet" doc:"fleet: of all nodes that share the ledger. node: of the node that is asked alone."`
}

// ofNode reports whether the figures of this node alone are asked for.
func (in *ScopeInput) ofNode() bool { return in.Scope == scopeNode }

// Reach says which nodes the figures of an answer are of.
type Reach struct {
	Scope   string        `json:"scope" enum:"fleet,node" doc:"fleet: the figures are those of all nodes. node: of the node that was asked alone."`
	Covers  []string      `json:"covers" nullable:"false" doc:"Names of the nodes whose figures are in the answer."`
	Missing []MissingNode `json:"missing" nullable:"false" doc:"Nodes whose figures are not in the answer, or only in part: they have not answered within a second, or send no heartbeat while they hold tasks, or still read their tasks after a start or an adoption."`

	RecentSince   string   `json:"recent_since,omitempty" format:"date-time" doc:"Since when figures of the last 5 minutes, such as recent and failed_recent, are of all nodes: what the nodes in recent_without had counted before has ended with their processes. Left out if they lack nothing, and where no other node shares the ledger: see uptime."`
	RecentWithout []string `json:"recent_without,omitempty" doc:"Names of nodes that have started or ended in the last 5 minutes."`
}

// MissingNode is a node whose figures are not in an answer.
type MissingNode struct {
	Node  string `json:"node" doc:"Its name. Empty: all other nodes, which are not known yet."`
	Error string `json:"error" doc:"Why."`
}

func wireReach(r *tasks.Reach) Reach {
	wire := Reach{
		Scope: scopeFleet, Covers: append([]string{}, r.Nodes...), Missing: make([]MissingNode, len(r.Missing)),
		RecentSince: formatInstant(r.RecentSince), RecentWithout: r.RecentWithout,
	}
	for i, m := range r.Missing {
		wire.Missing[i] = MissingNode{m.Node, m.Err.Error()}
	}
	return wire
}

// ownReach is that of an answer about a node alone.
func (s *Server) ownReach() Reach {
	own := s.scheduler.OwnReach()
	wire := wireReach(&own)
	wire.Scope = scopeNode
	return wire
}
