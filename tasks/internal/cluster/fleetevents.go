package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/events"
	"github.com/lapsehq/lapse/tasks/task"
)

// A FleetSubscription hears of what happens to tasks at all nodes that share the ledger: of each
// node in order, and of several as it arrives. An event of another node that finds no room there,
// because the reader is slow, is lost and counted, as of a Subscription. While a node does not
// answer, up to EventLease, its events wait there; after that they are missing.
//
// There is one goroutine for each other node, which has at most one batch of its events at a time:
// it asks for the next one when the reader has taken that.
type FleetSubscription struct {
	cluster *Cluster
	filter  task.EventFilter
	own     *events.Subscription
	told    chan task.NodeEvents // what other nodes have told: each waits for the reader
	begun   chan struct{}        // closed when the nodes have answered, or GatherWithin is over
	cancel  context.CancelFunc
	work    sync.WaitGroup
}

const (
	// eventTimeout bounds a call for events. A node that has not answered by then is missing.
	eventTimeout = eventWait + 800*time.Millisecond
	// renewFeedEvery is how often the lease of a feed is renewed while the reader does not read.
	renewFeedEvery = EventLease / 4
	// askFeedAgain is the pause after a call that has failed.
	askFeedAgain = time.Second
)

// FleetSubscribe is tasks.Admin.FleetSubscribe.
func (s *Cluster) FleetSubscribe(ctx context.Context, f task.EventFilter) (*FleetSubscription, error) {
	own, err := s.engine.Feed.Subscribe(f, false)
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithCancel(s.engine.Life.Context)
	u := &FleetSubscription{
		cluster: s, filter: f, own: own, told: make(chan task.NodeEvents), begun: make(chan struct{}), cancel: cancel,
	}
	if s.Fleet == nil {
		return u, nil
	}
	u.work.Go(func() { u.watch(within) })
	select {
	case <-u.begun:
		return u, nil
	case <-ctx.Done():
		u.Close()
		return nil, context.Cause(ctx)
	}
}

// Next waits until something has happened, and returns what was heard of one node. Its events are
// valid until the next call. Before the first events of another node, and after a time in which it
// did not answer, Next returns NodeCovered. One goroutine at a time may call it.
//
// Errors: that of ctx; ErrClosed once the subscription was closed, or the engine has ended and all
// events of this node were returned.
func (u *FleetSubscription) Next(ctx context.Context) (task.NodeEvents, error) {
	n, err := u.own.NextOf(ctx, u.told)
	if n.Node == "" {
		n.Node = u.cluster.NodeName()
	}
	return n, err
}

// Close ends the subscription, and a Next that waits. It is idempotent, and may be called from any
// goroutine.
func (u *FleetSubscription) Close() {
	u.own.Close()
	u.cancel()
	u.work.Wait()
}

// watch follows the other nodes, those too that join while the subscription is open.
func (u *FleetSubscription) watch(ctx context.Context) {
	links := make(map[string]*eventLink)
	u.look(ctx, links)
	first := time.NewTimer(GatherWithin)
	for _, l := range links {
		select {
		case <-l.tried:
		case <-first.C:
			first.Reset(0)
		case <-ctx.Done():
		}
	}
	first.Stop()
	close(u.begun)
	tick := time.NewTicker(PeersEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			u.look(ctx, links)
		case <-ctx.Done():
		}
	}
	for _, l := range links {
		l.stop()
	}
}

// An eventLink is what a FleetSubscription has with another node. Its goroutine ends, and another
// one begins, when the state of the node changes.
type eventLink struct {
	node  string
	state string          // see linkState
	told  task.NodeChange // what the reader knows; of the goroutine while it runs
	tried chan struct{}   // closed when the first call has been answered, or not
	end   context.CancelFunc
	ended chan struct{} // closed when the goroutine has ended
}

// stop ends the goroutine of a link.
func (l *eventLink) stop() {
	if l.end != nil {
		l.end()
		<-l.ended
	}
}

// linkState tells the states of a node apart: its process, if it lives. nodeAway: it does not, and
// has tasks. nodeGone: it has none.
func linkState(n *recovery.Node) string {
	switch {
	case absence(n) == nil:
		return "live " + n.Incarnation
	case holds(n):
		return nodeAway
	}
	return nodeGone
}

const (
	nodeAway = "away"
	nodeGone = "gone"
)

// look compares the links with the nodes. A node without a link that has gone is none of ours.
func (u *FleetSubscription) look(ctx context.Context, links map[string]*eventLink) {
	if u.cluster.NoPeers() && len(links) == 0 {
		return
	}
	nodes, err := u.cluster.fleetNodes(ctx)
	if err != nil {
		return // the nodes of before are good enough
	}
	gone := make(map[string]bool, len(links))
	for name := range links {
		gone[name] = true
	}
	for i := range nodes {
		n := &nodes[i]
		state := linkState(n)
		if n.Self || state == nodeGone {
			continue
		}
		delete(gone, n.Name)
		if l := links[n.Name]; l == nil {
			links[n.Name] = &eventLink{node: n.Name, tried: make(chan struct{})}
			u.enter(ctx, links[n.Name], state, absence(n))
		} else if l.state != state {
			u.enter(ctx, l, state, absence(n))
		}
	}
	for name := range gone {
		l := links[name]
		if l.state != nodeGone {
			u.enter(ctx, l, nodeGone, nil)
			continue
		}
		select {
		case <-l.ended:
			delete(links, name)
		default: // the reader has not been told yet
		}
	}
}

// enter begins what belongs to a state of a node.
func (u *FleetSubscription) enter(ctx context.Context, l *eventLink, state string, absent error) {
	l.stop()
	ctx, l.end = context.WithCancel(ctx)
	ended := make(chan struct{})
	l.state, l.ended = state, ended
	go func() {
		defer close(ended)
		switch state {
		case nodeAway:
			l.answered()
			u.miss(ctx, l, absent)
		case nodeGone:
			l.answered()
			if l.told != "" && u.tell(ctx, task.NodeEvents{Node: l.node, Change: task.NodeLeft}, nil) {
				l.told = ""
			}
		default:
			u.follow(ctx, l)
		}
	}()
}

// answered notes that the node was asked once.
func (l *eventLink) answered() {
	select {
	case <-l.tried:
	default:
		close(l.tried)
	}
}

// follow passes on the events of a node that lives, until ctx ends.
func (u *FleetSubscription) follow(ctx context.Context, l *eventLink) {
	f := feedReader{u, l, eventsQuery{Feed: uuid.NewString()}, false}
	defer f.end()
	for {
		reply, err := f.next(ctx)
		l.answered()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			u.miss(ctx, l, silence(err))
			if errors.Is(err, ErrNotUnderstood) || !sleepUntil(ctx, time.Now().Add(askFeedAgain)) {
				return // a later version is another process
			}
		case reply.Gone:
			f.query = eventsQuery{Feed: uuid.NewString()}
		case !f.pass(ctx, &reply):
			return
		}
	}
}

// A feedReader reads one node's feed.
type feedReader struct {
	*FleetSubscription
	link  *eventLink
	query eventsQuery // without a filter and a wait: it renews the lease
	late  bool        // the feed has begun after the subscription
}

// next asks for the next batch.
func (f *feedReader) next(ctx context.Context) (eventsReply, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	q := f.query
	q.Wait = eventWait
	if q.After == 0 {
		q.Topics, q.Patterns, q.Kinds = f.filter.Topics, f.filter.Patterns, f.filter.Kinds
	}
	reply, err := Call(ctx, f.cluster, f.link.node, EventsMethod, q)
	if q.After == 0 {
		select {
		case <-f.begun:
			f.late = true
		default:
			f.late = false
		}
	}
	return reply, err
}

// pass passes a batch on to the reader.
func (f *feedReader) pass(ctx context.Context, reply *eventsReply) bool {
	begins := f.query.After == 0
	f.query.After = reply.Number
	renew := func() {
		within, cancel := context.WithTimeout(ctx, eventTimeout)
		defer cancel()
		_, _ = Call(within, f.cluster, f.link.node, EventsMethod, f.query) // the next call tells
	}
	if begins || f.link.told != task.NodeCovered {
		if !f.tell(ctx, task.NodeEvents{Node: f.link.node, Change: task.NodeCovered, Gap: begins && f.late}, renew) {
			return false
		}
		f.link.told = task.NodeCovered
	}
	if len(reply.Events) == 0 && reply.Lost == 0 {
		return true
	}
	return f.tell(ctx, task.NodeEvents{Node: f.link.node, Events: reply.Events, Lost: reply.Lost}, renew)
}

// end tells the node that the feed is not needed any more. Its lease ends it too.
func (f *feedReader) end() {
	q := f.query
	q.End = true
	send(f.cluster, f.link.node, EventsMethod, q)
}

// miss tells the reader that a node is missing, unless it knows.
func (u *FleetSubscription) miss(ctx context.Context, l *eventLink, why error) {
	if l.told != task.NodeMissing && u.tell(ctx, task.NodeEvents{Node: l.node, Change: task.NodeMissing, Err: why}, nil) {
		l.told = task.NodeMissing
	}
}

// tell waits for the reader, and calls renew meanwhile. It reports false if ctx has ended before.
func (u *FleetSubscription) tell(ctx context.Context, n task.NodeEvents, renew func()) bool {
	tick := time.NewTicker(renewFeedEvery)
	defer tick.Stop()
	for {
		select {
		case u.told <- n:
			return true
		case <-tick.C:
			if renew != nil {
				renew()
			}
		case <-ctx.Done():
			return false
		}
	}
}

// silence says in few words why the events of a node are missing, as unanswered does.
func silence(err error) error {
	switch {
	case errors.Is(err, ErrNotUnderstood):
		return task.KindOf(err, "its version cannot tell its events")
	case errors.Is(err, task.ErrOverloaded):
		return task.KindOf(err, "too many readers of its events, or calls between nodes")
	case errors.Is(err, task.ErrClosed):
		return task.KindOf(err, "it is ending")
	case errors.Is(err, task.ErrInvalid):
		return task.KindOf(err, "its version does not know what is asked for")
	}
	return task.KindOf(err, "no answer")
}
