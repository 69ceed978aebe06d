package respapi

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Subjects of the messages between nodes.
const (
	subjectWants   = "resp.wants"   // what the subscribers of a node wish for
	subjectEvents  = "resp.events"  // events and messages for subscribers, sent once
	subjectExpired = "resp.expired" // expired events, answered with who got them
)

// What an answer about an expired event says; 0: no subscriber of the node wants it.
const (
	eventGot  = 1 // a subscriber got it
	eventOpen = 2 // one that did not may want it
)

const (
	// wantsEvery is how often a node repeats what its subscribers wish for.
	wantsEvery = time.Second
	// wantsHold is how long that holds.
	wantsHold = 3 * time.Second
	// slowWithin is how long it waits once a receiver of its own node has all.
	slowWithin = 2 * time.Second
	// answerWithin is how long a delivery waits for another node, unless that falls silent. It is
	// longer than that waits for its subscribers.
	answerWithin = takenWithin + time.Second
	// mostRelayed bounds a message to subscribers of other nodes.
	mostRelayed = 512 << 10
	// relayBytes is how many bytes of events go in one message between nodes.
	relayBytes = 64 << 10
	// mostUnsent bounds the events that wait to be sent to other nodes.
	mostUnsent = 16 << 20
)

// peers is what the other nodes wish for, and what is on its way to them.
type peers struct {
	mu     sync.Mutex // guards what follows
	wants  map[string]*peerWants
	unsent [][]byte // frames
	bytes  int      // of them

	all     atomic.Uint32 // what any of them wishes for
	came    atomic.Uint32 // counts when one of them told of other arrivals
	changed chan struct{} // 1: that of a peer or of this node has changed
	wake    chan struct{} // 1: frames are unsent
	silent  atomic.Int64  // when a node that does not answer was logged last, in Unix nanoseconds
}

// peerWants is what the subscribers of a node wish for.
type peerWants struct {
	classes classes
	came    uint32 // hub.came of the node
	until   time.Time
	heard   context.Context // ends when they are forgotten
	forget  context.CancelFunc
}

func newPeers() *peers {
	return &peers{wants: make(map[string]*peerWants), changed: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// poke wakes the reader of a channel of one place.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// set notes what a node wishes for.
func (p *peers) set(node string, c classes, came uint32, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.wants[node]
	switch {
	case c == 0:
		p.forgetLocked(node)
	case w != nil:
		if w.came != came {
			p.came.Add(1)
			poke(p.changed)
		}
		w.classes, w.came, w.until = c, came, until
	default:
		w = &peerWants{classes: c, came: came, until: until}
		p.came.Add(1)
		poke(p.changed)
		w.heard, w.forget = context.WithCancel(context.Background())
		p.wants[node] = w
	}
	p.reviewLocked()
}

// forget drops what has not been repeated.
func (p *peers) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for node, w := range p.wants {
		if w.until.Before(now) {
			p.forgetLocked(node)
		}
	}
	p.reviewLocked()
}

// forgetLocked drops what a node wishes for. It ends what waits for the node.
func (p *peers) forgetLocked(node string) {
	if w := p.wants[node]; w != nil {
		w.forget()
		delete(p.wants, node)
	}
}

func (p *peers) reviewLocked() {
	var all classes
	for _, w := range p.wants {
		all |= w.classes
	}
	if p.all.Swap(uint32(all)) != uint32(all) {
		poke(p.changed)
	}
}

// with returns the nodes that wish for a class.
func (p *peers) with(class classes) (nodes []string) {
	if classes(p.all.Load())&class == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for node, w := range p.wants {
		if w.classes&class != 0 {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// within returns a context that ends as soon as a node is forgotten.
func (p *peers) within(ctx context.Context, node string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.wants[node]
	if w == nil {
		cancel()
		return ctx, cancel
	}
	stop := context.AfterFunc(w.heard, cancel)
	return ctx, func() { stop(); cancel() }
}

// wanted returns the classes that a subscriber of any node wishes for.
func (s *Server) wanted() classes { return classes(s.hub.wants.Load() | s.peers.all.Load()) }

// talk begins to talk to the other nodes.
func (s *Server) talk(scheduler tasks.Admin) error {
	handlers := map[string]tasks.MessageHandler{
		subjectWants: s.onWants, subjectEvents: s.onEvents, subjectExpired: s.onExpired,
		subjectPending: s.onPending, subjectGroup: s.onGroup, subjectClaim: s.onClaim,
	}
	for verb, subject := range settleSubjects {
		handlers[subject] = s.onSettle(verb)
	}
	for subject, f := range handlers {
		if err := scheduler.OnMessage(subject, f); err != nil {
			return err
		}
	}
	s.background(func() { s.tellWants(scheduler) })
	s.background(func() { s.sendEvents(scheduler) })
	s.background(s.publishDoubted)
	return nil
}

// background runs f, which ends when the server does.
func (s *Server) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending.Err() == nil {
		s.work.Go(f)
	}
}

// tellWants tells the other nodes what the subscribers of this one wish for. When the first
// receiver of expired events comes, the tasks that wait for it are delivered. So are those that
// wait for a subscriber of their keys when further ones have come, told once in wantsEvery.
func (s *Server) tellWants(scheduler tasks.Admin) {
	ticker := time.NewTicker(wantsEvery)
	defer ticker.Stop()
	var told, had classes
	var toldCame, hadCame uint32
	var lately time.Time
	for open := true; open; {
		again := false
		select {
		case <-ticker.C:
			again = true
			s.peers.forget(time.Now())
		case <-s.peers.changed:
		case <-s.ending.Done():
			open = false
		}
		wants := classes(s.hub.wants.Load())
		if !open {
			wants = 0
		}
		now := time.Now()
		due := again || now.Sub(lately) >= wantsEvery
		if own := s.hub.came.Load(); wants != told || again && wants != 0 || due && own != toldCame {
			told, toldCame = wants, own
			body := append(strconv.AppendUint(nil, uint64(wants), 10), ' ')
			scheduler.Broadcast(subjectWants, strconv.AppendUint(body, uint64(own), 10))
		}
		all, came := s.wanted(), s.hub.came.Load()+s.peers.came.Load()
		if open && (all&^had&anyReceiver != 0 || due && came != hadCame) {
			hadCame, lately = came, now
			scheduler.ReceiverCame()
		}
		if all != had {
			had = all
			poke(s.due)
		}
	}
}

func (s *Server) onWants(_ context.Context, from string, body []byte) ([]byte, error) {
	var wants classes
	var came uint32
	_, err := fmt.Sscan(string(body), &wants, &came)
	if err == nil {
		s.peers.set(from, wants, came, time.Now().Add(wantsHold))
	}
	return nil, err
}

// add has a frame sent to the other nodes. It reports false if too much is unsent.
func (p *peers) add(frame []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes+len(frame) > mostUnsent {
		return false
	}
	p.unsent, p.bytes = append(p.unsent, frame), p.bytes+len(frame)
	poke(p.wake)
	return true
}

// sendEvents sends frames to the other nodes, those together that have come while others were sent.
func (s *Server) sendEvents(scheduler tasks.Admin) {
	for {
		select {
		case <-s.peers.wake:
		case <-s.ending.Done():
			return
		}
		s.peers.mu.Lock()
		frames := s.peers.unsent
		s.peers.unsent, s.peers.bytes = nil, 0
		s.peers.mu.Unlock()
		var body []byte
		for _, f := range frames {
			if len(body) > 0 && len(body)+len(f) > relayBytes {
				scheduler.Broadcast(subjectEvents, body)
				body = body[:0]
			}
			body = append(body, f...)
		}
		if len(body) > 0 {
			scheduler.Broadcast(subjectEvents, body)
		}
	}
}

// isRelayed reports whether a message goes to other nodes, where clients have subscribed.
func (s *Server) isRelayed() bool { return classes(s.peers.all.Load())&anyMessage != 0 }

// relayFrame sends an event or a message to the other nodes.
func (s *Server) relayFrame(class classes, topic, event, key string) {
	frame := make([]byte, 0, len(topic)+len(event)+len(key)+4*binary.MaxVarintLen32)
	frame = binary.AppendUvarint(frame, uint64(class))
	for _, text := range []string{topic, event, key} {
		frame = appendText(frame, text)
	}
	if !s.peers.add(frame) {
		s.counts.unsent.Add(1)
	}
}

// onEvents takes frames of another node.
func (s *Server) onEvents(_ context.Context, _ string, body []byte) ([]byte, error) {
	for r := (frameReader{b: body}); len(r.b) > 0; {
		class, topic, event, key := classes(r.number()), r.text(), r.text(), r.text()
		switch {
		case r.bad:
			return nil, errBadFrame
		case class == anyMessage:
			s.hub.publish(event, key)
		default:
			s.hub.publishEvents(class, topic, event, []string{key}, nil)
		}
	}
	return nil, nil
}

// onExpired publishes expired events of another node. The answer has a byte for each.
func (s *Server) onExpired(ctx context.Context, _ string, body []byte) ([]byte, error) {
	r := frameReader{b: body}
	topic := r.text()
	var keys []string
	for len(r.b) > 0 {
		keys = append(keys, r.text())
	}
	if r.bad {
		return nil, errBadFrame
	}
	answer := make([]byte, len(keys))
	got, open := s.publishHere(ctx, topic, keys, true)
	for i, heard := range got {
		switch {
		case heard:
			answer[i] = eventGot
		case open:
			answer[i] = eventOpen
		}
	}
	return answer, nil
}

// askExpired has another node publish expired events, and returns its answer.
func (s *Server) askExpired(ctx context.Context, scheduler tasks.Admin, node string, body []byte) []byte {
	known, stop := s.peers.within(ctx, node)
	defer stop()
	answer, err := scheduler.Ask(known, node, subjectExpired, body)
	if err != nil && ctx.Err() == nil {
		// Until it says again what its subscribers wish for, it is not asked.
		s.peers.set(node, 0, 0, time.Time{})
		s.log.Debug("a node does not publish expired events", "node", node, "error", err)
	}
	return answer
}
