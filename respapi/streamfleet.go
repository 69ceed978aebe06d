package respapi

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Each node keeps the entries that it has handed out. Verbs that look at a group, or claim its
// entries, ask the other nodes for theirs.

// Subjects of the messages about streams between nodes. Each message begins with the topic.
const (
	subjectPending = "resp.pending" // which entries are out
	subjectGroup   = "resp.group"   // the figures of the group
	subjectClaim   = "resp.claim"   // has a consumer take entries over
)

const (
	// peersWithin bounds the time for which a verb about streams waits for other nodes.
	peersWithin = 3 * time.Second
	// mostListed is how many entries are listed at once.
	mostListed = 10*tasks.MaxReserve + 1
	// mostPeerBytes is how many bytes of an answer to another node begin a last entry.
	mostPeerBytes = tasks.MaxMessage - 16<<10
	// silentEvery is the least time between two logs of nodes that do not answer.
	silentEvery = 10 * time.Second
)

// A pendingEntry is an entry that is out, at any node.
type pendingEntry struct {
	id         entryID
	consumer   string
	idle       time.Duration
	deliveries int64
}

func (i entryID) appendTo(b []byte) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, i.ms), i.seq)
}

func (r *frameReader) id() entryID { return entryID{r.number(), r.number()} }

// askPeers asks all other nodes, at the same time. It calls take with each answer, one after the
// other. Nodes that do not answer are left out, and logged.
func (s *Server) askPeers(ctx context.Context, subject string, body []byte, take func(*frameReader)) {
	scheduler := s.scheduler.Load().Admin()
	peers := scheduler.Peers()
	if len(peers) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, peersWithin)
	defer cancel()
	var group sync.WaitGroup
	var mu sync.Mutex // one take at a time
	for _, peer := range peers {
		group.Go(func() {
			answer, err := scheduler.Ask(ctx, peer, subject, body)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				r := &frameReader{b: answer}
				if take(r); !r.bad {
					return
				}
				err = errBadFrame
			}
			now := time.Now().UnixNano()
			if last := s.peers.silent.Load(); now-last >= int64(silentEvery) && s.peers.silent.CompareAndSwap(last, now) {
				s.log.Warn("a node does not answer about its entries of streams: they are left out", "node", peer, "subject", subject, "error", err)
			}
		})
	}
	group.Wait()
}

// pending returns entries that are out at this node, in order. more: there are others after them.
func (t *stream) pending(r *pendingRange) (list []pendingEntry, more bool) {
	now := time.Now()
	t.lock(now)
	defer t.mu.Unlock()
	all := t.outLocked(r.from, func(e *outEntry) bool {
		return e.id.compare(r.to) <= 0 && now.Sub(e.since) >= r.least && (r.consumer == nil || e.consumer.name == string(r.consumer))
	})
	n := int(min(int64(len(all)), r.count, mostListed))
	list = make([]pendingEntry, n)
	for i, e := range all[:n] {
		list[i] = pendingEntry{e.id, e.consumer.name, max(0, now.Sub(e.since)), e.deliveries}
	}
	return list, n < len(all)
}

// pending returns entries that are out at the nodes that answer, in order, at most mostListed.
// more: there are others after them.
func (s *Server) pending(ctx context.Context, topic string, r pendingRange) (list []pendingEntry, more bool) {
	if r.count = min(r.count, mostListed); r.count <= 0 {
		return nil, false
	}
	if t := s.streams.of(topic); t != nil {
		list, more = t.pending(&r)
	}
	last := lastEntryID // of what is known completely
	if more {
		last = list[len(list)-1].id
	}
	body := r.to.appendTo(r.from.appendTo(appendText(nil, topic)))
	body = binary.AppendUvarint(body, uint64(r.least))
	body = binary.AppendUvarint(body, uint64(r.count))
	if r.consumer != nil {
		body = appendText(body, string(r.consumer))
	}
	s.askPeers(ctx, subjectPending, body, func(f *frameReader) {
		cut := f.number() != 0
		var theirs []pendingEntry
		for len(f.b) > 0 {
			theirs = append(theirs, pendingEntry{f.id(), f.text(), time.Duration(f.number()), int64(f.number())})
		}
		if f.bad {
			return
		}
		list = append(list, theirs...)
		if cut && len(theirs) > 0 {
			more = true
			if end := theirs[len(theirs)-1].id; end.compare(last) < 0 {
				last = end
			}
		}
	})
	// Two nodes have an entry for a moment when its lease ends. Its newest delivery counts.
	slices.SortFunc(list, func(a, b pendingEntry) int { return cmp.Or(a.id.compare(b.id), cmp.Compare(a.idle, b.idle)) })
	list = slices.CompactFunc(list, func(a, b pendingEntry) bool { return a.id == b.id })
	n, _ := slices.BinarySearchFunc(list, last, func(e pendingEntry, last entryID) int {
		if e.id.compare(last) <= 0 {
			return -1
		}
		return 1
	})
	n = min(n, int(r.count))
	return list[:n], more || n < len(list)
}

// onPending answers which entries are out at this node.
func (s *Server) onPending(_ context.Context, _ string, body []byte) ([]byte, error) {
	f := frameReader{b: body}
	topic := f.text()
	r := pendingRange{from: f.id(), to: f.id(), least: time.Duration(f.number()), count: int64(min(f.number(), mostListed))}
	if len(f.b) > 0 {
		r.consumer = []byte(f.text())
	}
	if f.bad {
		return nil, errBadFrame
	}
	var list []pendingEntry
	more := false
	if t := s.streams.of(topic); t != nil {
		list, more = t.pending(&r)
	}
	var b []byte
	for _, e := range list {
		if len(b) > mostPeerBytes {
			more = true
			break
		}
		b = appendText(e.id.appendTo(b), e.consumer)
		b = binary.AppendUvarint(b, uint64(e.idle))
		b = binary.AppendUvarint(b, uint64(e.deliveries))
	}
	cut := byte(0)
	if more {
		cut = 1
	}
	return append([]byte{cut}, b...), nil
}

// groupFigures are what is known of a stream's group.
type groupFigures struct {
	name        string // "": not known
	out         int64  // entries
	first, last entryID
	delivered   entryID // the greatest that was handed out
	read        int64   // entries that were handed out
	consumers   map[string]consumerFigures
}

// consumerFigures are what is known of a consumer.
type consumerFigures struct {
	out  int64
	idle time.Duration
}

// figures returns what this node knows of the group.
func (t *stream) figures() *groupFigures {
	now := time.Now()
	t.lock(now)
	defer t.mu.Unlock()
	g := &groupFigures{
		name: t.group, out: int64(len(t.entries)), first: lastEntryID, delivered: t.last, read: t.read,
		consumers: make(map[string]consumerFigures, len(t.consumers)),
	}
	for id := range t.entries {
		if id.compare(g.first) < 0 {
			g.first = id
		}
		if id.compare(g.last) > 0 {
			g.last = id
		}
	}
	for name, c := range t.consumers {
		g.consumers[name] = consumerFigures{int64(c.out), max(0, now.Sub(c.seen))}
	}
	return g
}

// figures returns what the nodes that answer know of the group.
func (s *Server) figures(ctx context.Context, topic string) *groupFigures {
	g := &groupFigures{first: lastEntryID, consumers: make(map[string]consumerFigures)}
	if t := s.streams.of(topic); t != nil {
		g = t.figures()
	}
	s.askPeers(ctx, subjectGroup, appendText(nil, topic), func(f *frameReader) {
		o := groupFigures{name: f.text(), out: int64(f.number()), first: f.id(), last: f.id(), delivered: f.id(), read: int64(f.number())}
		if f.bad {
			return
		}
		g.name = cmp.Or(g.name, o.name)
		g.out, g.read = g.out+o.out, g.read+o.read
		if o.first.compare(g.first) < 0 {
			g.first = o.first
		}
		if o.last.compare(g.last) > 0 {
			g.last = o.last
		}
		if o.delivered.compare(g.delivered) > 0 {
			g.delivered = o.delivered
		}
		for len(f.b) > 0 {
			name, out, idle := f.text(), int64(f.number()), time.Duration(f.number())
			if f.bad {
				return
			}
			if c, ok := g.consumers[name]; ok {
				out, idle = out+c.out, min(idle, c.idle)
			}
			g.consumers[name] = consumerFigures{out, idle}
		}
	})
	return g
}

// onGroup answers what this node knows of a group. If not all consumers have room in the message,
// those with the most entries are in it.
func (s *Server) onGroup(_ context.Context, _ string, body []byte) ([]byte, error) {
	f := frameReader{b: body}
	topic := f.text()
	if f.bad {
		return nil, errBadFrame
	}
	g := &groupFigures{first: lastEntryID}
	if t := s.streams.of(topic); t != nil {
		g = t.figures()
	}
	b := binary.AppendUvarint(appendText(nil, g.name), uint64(g.out))
	b = g.delivered.appendTo(g.last.appendTo(g.first.appendTo(b)))
	b = binary.AppendUvarint(b, uint64(g.read))
	names := g.names()
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(g.consumers[b].out, g.consumers[a].out) })
	for _, name := range names {
		if len(b) > mostPeerBytes {
			break
		}
		c := g.consumers[name]
		b = binary.AppendUvarint(binary.AppendUvarint(appendText(b, name), uint64(c.out)), uint64(c.idle))
	}
	return b, nil
}

// names returns the names of the consumers in order.
func (g *groupFigures) names() []string {
	names := make([]string, 0, len(g.consumers))
	for name := range g.consumers {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)
	return names
}

// groupName returns the name by which the group is shown.
func (g *groupFigures) groupName() string {
	return cmp.Or(g.name, "lapse") // the nodes have restarted since it was made
}
