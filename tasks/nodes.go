package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// A Node is one of the processes that share a ledger: what the ledger knows of it, and
// what its memory had to say with its last sign of life.
type Node struct {
	Name        string
	Self        bool          // this process
	Live        bool          // it is not taken for dead
	Quiet       bool          // it shows no signs of life, be it taken for dead or not
	Released    bool          // its last process ended in order
	Silent      time.Duration // for how long this process has seen no sign of life
	Incarnation string        // names the process among all that had the node's name
	Process     string        // which process, for people
	Version     string        // of the program
	Address     string        // where it serves HTTP; empty if it does not

	Shards  int // of its own: how many it has ever used
	Held    int // of its own: how many it holds now
	Adopted int // how many of other nodes' it holds

	// Status is what its memory says; nil if that is not known, or it does not live.
	Status *NodeStatus
}

// NodeStatus is what other nodes should know of one's memory. It travels as JSON between
// processes of different versions: fields are only ever added.
type NodeStatus struct {
	Pending    int64 `json:"pending"`
	Ready      int64 `json:"ready"`
	Delivering int64 `json:"delivering"`
	Dead       int64 `json:"dead"`
	Room       int   `json:"room"` // how many more tasks its memory takes

	// Of first attempts since the process began, by the buckets of LatenessBounds: half
	// of them, and 99 of 100, were not later than that. 0 if there was none.
	LatenessP50 time.Duration `json:"lateness_p50_ns"`
	LatenessP99 time.Duration `json:"lateness_p99_ns"`

	Backlog  bool `json:"backlog,omitempty"`  // more ready tasks wait than Config.SweepBacklog
	Draining bool `json:"draining,omitempty"` // it takes no tasks and no shards any more
	Unsure   bool `json:"unsure,omitempty"`   // it may have lost what it held
	Catching bool `json:"catching,omitempty"` // it still reads tasks that it holds

	// Spooled are the shards whose tasks only this node's spool has, whichever node holds them.
	Spooled []recovery.Home `json:"spooled,omitempty"`

	// How often this process could not be drained as DrainNode had asked, and why the last time.
	DrainsFailed int    `json:"drains_failed,omitempty"`
	DrainFault   string `json:"drain_fault,omitempty"`
}

// Nodes lists the nodes that share the ledger, by name. A ledger that is not shared has
// one. Errors: ErrUnavailable, ErrClosed.
func (s *Scheduler) Nodes(ctx context.Context) ([]Node, error) {
	if s.isClosing() {
		return nil, ErrClosed
	}
	if s.fleet == nil {
		st := s.nodeStatus()
		return []Node{{Name: s.cfg.Node, Self: true, Live: true, Shards: s.terms.Shards, Held: s.terms.Shards, Status: &st}}, nil
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	known, err := s.fleet.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	all := make([]Node, len(known))
	for i := range known {
		all[i] = describeNode(&known[i])
		if known[i].Self {
			st := s.nodeStatus()
			all[i].Status = &st
		}
	}
	return all, nil
}

func describeNode(k *recovery.Node) Node {
	n := Node{
		Name: k.Name, Self: k.Self, Live: k.Live && !k.Gone, Quiet: k.Quiet, Released: k.Released, Silent: k.Silent, Incarnation: k.Incarnation,
		Process: k.Process, Version: k.Version, Address: k.Address, Shards: k.Shards, Held: k.Held, Adopted: k.Adopted,
	}
	var st NodeStatus
	if len(k.Status) > 0 && json.Unmarshal(k.Status, &st) == nil {
		n.Status = &st
	}
	return n
}

// room is how many records more memory takes, when a shard could be adopted.
func (s *Scheduler) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomForMoreLocked()
}

func (s *Scheduler) roomForMoreLocked() int {
	if s.ended || s.draining {
		return 0
	}
	return max(0, s.cfg.MaxPending-s.book.used)
}

// status is what other nodes are told with every sign of life.
func (s *Scheduler) status() []byte {
	st := s.nodeStatus()
	b, err := json.Marshal(&st)
	if err != nil {
		return nil
	}
	return b
}

func (s *Scheduler) nodeStatus() NodeStatus {
	var all Counts
	s.eachTopic(func(t *topic) {
		all.Add(&t.counts)
		all.Pending += t.gauges[Pending]
		all.Ready += t.gauges[Ready]
		all.Delivering += t.gauges[Delivering]
		all.Dead += t.gauges[Dead]
	})
	st := NodeStatus{
		Pending: all.Pending, Ready: all.Ready, Delivering: all.Delivering, Dead: all.Dead,
		LatenessP50: all.Lateness.Quantile(0.5), LatenessP99: all.Lateness.Quantile(0.99),
		Unsure: s.unsure(), Catching: !s.isReplayed(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Room, st.Backlog, st.Draining = s.roomForMoreLocked(), s.sweep.raised, s.draining
	st.DrainsFailed, st.DrainFault = s.drainsFailed, s.drainFault
	st.Spooled = s.spooledShardsLocked()
	return st
}

// Quantile is the bound of the bucket below which that part of the durations are, such
// as 0.99 of them; an hour more than the last bound for those above it. It is 0 if
// nothing was counted.
func (h *Histogram) Quantile(part float64) time.Duration {
	total := int64(0)
	for _, n := range h.Counts {
		total += n
	}
	if total == 0 {
		return 0
	}
	left := int64(part*float64(total)) + 1
	i := slices.IndexFunc(h.Counts[:], func(n int64) bool { left -= n; return left <= 0 })
	if i < 0 || i == len(LatenessBounds) {
		return LatenessBounds[len(LatenessBounds)-1] + time.Hour
	}
	return LatenessBounds[i]
}
