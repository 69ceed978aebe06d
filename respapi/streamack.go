package respapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// unsettled returns why a delivery was not settled, as far as the caller may rely on it; nil if it
// was.
func unsettled(s *tasks.Settled) error {
	if s.Err == nil && !s.Recorded {
		return tasks.ErrUnrecorded
	}
	return s.Err
}

// isOver reports whether a delivery has ended without this verdict.
func isOver(err error) bool {
	return errors.Is(err, tasks.ErrStale) || errors.Is(err, tasks.ErrReceipt)
}

// settle gives a verdict on entries. It drops those that are over, and those that were settled, of
// which it returns the number. If kept is not nil, it is called with those instead. The error is
// the gravest one of an entry that was not settled. Such entries stay.
func (s *Server) settle(ctx context.Context, t *stream, v tasks.Verdict, list []settling, kept func(*outEntry, *tasks.Settled)) (n int, err error) {
	for part := range slices.Chunk(list, tasks.MaxReserve) {
		receipts := make([]string, len(part))
		for i := range part {
			receipts[i] = part[i].receipt
		}
		settled, failed := s.scheduler.Load().Settle(ctx, v, receipts)
		if failed != nil {
			return n, failed
		}
		t.mu.Lock()
		for i := range part {
			e, failed := part[i].entry, unsettled(&settled[i])
			switch {
			case failed != nil && !isOver(failed):
				err = graver(err, failed)
			case e.index < 0: // another call has dropped it
			case failed == nil && kept != nil:
				kept(e, &settled[i])
				n++
			default:
				t.dropLocked(e)
				if failed == nil {
					n++
				}
			}
		}
		t.mu.Unlock()
	}
	return n, err
}

// A settling is an entry that is being settled.
type settling struct {
	entry   *outEntry
	receipt string
}

// settlings returns what it takes to settle entries.
func settlings(list []*outEntry) []settling {
	all := make([]settling, len(list))
	for i, e := range list {
		all[i] = settling{e, e.receipt}
	}
	return all
}

// What became of an id of an XACK.
const (
	ackUnknown byte = iota // the node has not handed it out, or it is over
	acked
	ackedBefore // the id came twice
	ackFailed   // the outcome is not known
)

// acknowledge acknowledges the entries with these ids that this node has handed out. It returns
// what became of each. The error is the gravest one of those that failed.
func (s *Server) acknowledge(ctx context.Context, topic string, ids []entryID) (states []byte, err error) {
	states = make([]byte, len(ids))
	t := s.streams.of(topic)
	if t == nil {
		return states, nil
	}
	list, places := make([]settling, 0, len(ids)), make(map[*outEntry]int, len(ids))
	t.lock(time.Now())
	for i, id := range ids {
		e := t.entries[id]
		if e == nil {
			continue
		}
		if _, twice := places[e]; twice {
			states[i] = ackedBefore
			continue
		}
		places[e] = i
		list = append(list, settling{e, e.receipt})
	}
	t.mu.Unlock()
	_, err = s.settle(ctx, t, tasks.Verdict{Verb: tasks.Ack}, list, func(e *outEntry, _ *tasks.Settled) {
		t.dropLocked(e)
		states[places[e]] = acked
	})
	if err != nil {
		t.mu.Lock()
		for e, i := range places {
			if e.index >= 0 {
				states[i] = ackFailed
			}
		}
		t.mu.Unlock()
	}
	return states, err
}

// runAck answers XACK key group id [id ...].
func runAck(x *call) { ackAll([]*call{x}) }

// runXDel answers XDEL key id [id ...]: it acknowledges entries that are out.
func runXDel(x *call) { ackAll([]*call{x}) }

// An acking is an XACK or XDEL of a pipeline: its ids are those of its topic from a place on.
type acking struct {
	call     *call
	from, to int
}

// ackAll answers commands of a pipeline that acknowledge entries. Those of one stream wait for the
// ledger together.
func ackAll(calls []*call) {
	ids, ackings := make(map[string][]entryID), make(map[string][]acking)
	for _, x := range calls {
		topic, own, ok := x.readAck()
		if !ok {
			continue
		}
		from := len(ids[topic])
		ids[topic] = append(ids[topic], own...)
		ackings[topic] = append(ackings[topic], acking{x, from, from + len(own)})
	}
	var group sync.WaitGroup
	defer group.Wait()
	for topic, list := range ackings {
		group.Go(func() { answerAcks(list, topic, ids[topic]) })
	}
}

// readAck reads an XACK or XDEL. It answers and reports false if there is nothing to be done.
func (x *call) readAck() (topic string, ids []entryID, ok bool) {
	args := x.args[2:]
	if x.verb.name == "xack" {
		args = args[1:]
	}
	topic = topicOfStream(x.args[1])
	switch {
	case topic == "" && !x.isNoString(x.args[1]), topic != "" && !x.granted(topic):
		return topic, nil, false
	}
	ids = make([]entryID, len(args))
	for i, arg := range args {
		if ids[i], ok = parseEntryID(arg, 0); !ok {
			x.out.Error(errBadEntryID)
			return topic, nil, false
		}
	}
	if topic == "" {
		x.out.Int(0)
		return topic, nil, false
	}
	return topic, ids, true
}

// answerAcks acknowledges entries of a stream, also those that other nodes have handed out.
func answerAcks(list []acking, topic string, ids []entryID) {
	x := list[0].call
	states, err := x.c.server.acknowledge(x.ctx, topic, ids)
	var places []int
	var unknown []entryID
	first := make(map[entryID]struct{})
	for i, state := range states {
		if _, twice := first[ids[i]]; state == ackUnknown && !twice {
			first[ids[i]] = struct{}{}
			places, unknown = append(places, i), append(unknown, ids[i])
		}
	}
	if len(unknown) > 0 {
		more, failed := x.c.server.acknowledgeElsewhere(x.ctx, topic, unknown)
		for i, place := range places {
			states[place] = more[i]
		}
		err = graver(err, failed)
	}
	for _, a := range list {
		n, failed := 0, false
		for _, state := range states[a.from:a.to] {
			switch state {
			case acked:
				n++
			case ackFailed:
				failed = true
			}
		}
		if failed {
			a.call.fail(err)
		} else {
			a.call.out.Int(int64(n))
		}
	}
}

const (
	// ackSubject is the subject of messages that acknowledge entries of another node: the topic,
	// and the ids. The answer has a byte for each id: what became of it.
	ackSubject = "resp.ack"
	// mostAskedAck is how many ids one message has.
	mostAskedAck = 10_000
	// ackWithin bounds the time that an acknowledgement at another node takes.
	ackWithin = 10 * time.Second
)

// acknowledgeElsewhere acknowledges entries that other nodes have handed out. It returns what
// became of each: an id that no node has acknowledged has failed if a node that may have it does
// not answer. Error: the gravest one of such nodes.
func (s *Server) acknowledgeElsewhere(ctx context.Context, topic string, ids []entryID) (states []byte, err error) {
	states = make([]byte, len(ids))
	scheduler := s.scheduler.Load()
	peers := scheduler.Peers()
	if len(peers) == 0 {
		return states, nil
	}
	ctx, cancel := context.WithTimeout(ctx, ackWithin)
	defer cancel()
	rest := states
	for part := range slices.Chunk(ids, mostAskedAck) {
		body := appendText(nil, topic)
		for _, id := range part {
			body = id.appendTo(body)
		}
		var group sync.WaitGroup
		var mu sync.Mutex // guards rest, err
		for _, peer := range peers {
			group.Go(func() {
				answer, failed := scheduler.Ask(ctx, peer, ackSubject, body)
				mu.Lock()
				defer mu.Unlock()
				err = graver(err, mergeAcks(rest[:len(part)], answer, failed))
			})
		}
		group.Wait()
		rest = rest[len(part):]
	}
	return states, err
}

// mergeAcks adds to states what a node has answered, or failed to answer. It returns why an id has
// failed there: a node that answers that one has does not say whether it was acknowledged.
func mergeAcks(states, answer []byte, failed error) error {
	switch {
	case failed == nil && len(answer) != len(states):
		failed = fmt.Errorf("%w: %w", tasks.ErrUnknown, errBadFrame)
	case failed == nil:
	case !errors.Is(failed, tasks.ErrNodeAway) && errors.Is(failed, tasks.ErrUnavailable):
		return nil // the node has no such port
	}
	if failed != nil {
		answer = bytes.Repeat([]byte{ackFailed}, len(states))
	}
	for i, state := range answer {
		if state == ackFailed && failed == nil {
			failed = tasks.ErrUnknown
		}
		if states[i] != acked && (state == acked || state > states[i]) {
			states[i] = state
		}
	}
	return failed
}

// acknowledgeFor acknowledges entries for another node.
func (s *Server) acknowledgeFor(ctx context.Context, _ string, body []byte) ([]byte, error) {
	f := frameReader{b: body}
	topic := f.text()
	var ids []entryID
	for len(f.b) > 0 {
		ids = append(ids, f.id())
	}
	if f.bad {
		return nil, errBadFrame
	}
	states, err := s.acknowledge(ctx, topic, ids)
	if err != nil {
		s.log.Debug("an acknowledgement for another node failed", "topic", topic, "error", err)
	}
	return states, nil
}
