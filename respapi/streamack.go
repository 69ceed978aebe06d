package respapi

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

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
// the last one of an entry of which the outcome is not known. Such entries stay.
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
				err = failed
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

// acknowledge acknowledges the entries with these ids that this node has handed out. It returns how
// many, and the ids of which it knows nothing. Error: as of settle.
func (s *Server) acknowledge(ctx context.Context, topic string, ids []entryID) (n int, unknown []entryID, err error) {
	t := s.streams.of(topic)
	if t == nil {
		return 0, ids, nil
	}
	list := make([]settling, 0, len(ids))
	t.lock(time.Now())
	t.turn++
	for _, id := range ids {
		switch e := t.entries[id]; {
		case e == nil:
			unknown = append(unknown, id)
		case e.turn != t.turn: // not twice
			e.turn = t.turn
			list = append(list, settling{e, e.receipt})
		}
	}
	t.mu.Unlock()
	n, err = s.settle(ctx, t, tasks.Verdict{Verb: tasks.Ack}, list, nil)
	return n, unknown, err
}

// runAck answers XACK key group id [id ...].
func runAck(x *call) { x.acknowledge(x.args[3:]) }

// runXDel answers XDEL key id [id ...]: it acknowledges entries that are out.
func runXDel(x *call) { x.acknowledge(x.args[2:]) }

// acknowledge acknowledges entries, also those that other nodes have handed out.
func (x *call) acknowledge(args [][]byte) {
	topic := topicOfStream(x.args[1])
	switch {
	case topic == "" && !x.isNoString(x.args[1]), topic != "" && !x.granted(topic):
		return
	}
	ids := make([]entryID, len(args))
	for i, arg := range args {
		var ok bool
		if ids[i], ok = parseEntryID(arg, 0); !ok {
			x.out.Error(errBadEntryID)
			return
		}
	}
	if topic == "" {
		x.out.Int(0)
		return
	}
	n, unknown, err := x.c.server.acknowledge(x.ctx, topic, ids)
	if err == nil && len(unknown) > 0 {
		var more int
		more, err = x.c.server.acknowledgeElsewhere(x.ctx, topic, unknown)
		n += more
	}
	if err != nil {
		x.fail(err)
		return
	}
	x.out.Int(int64(n))
}

const (
	// ackSubject is the subject of messages that acknowledge entries of another node: the length of
	// the topic in 2 bytes, the topic, and 16 bytes an id. The answer is the number of those that
	// were acknowledged, in 4 bytes. Integers are big-endian.
	ackSubject = "resp.ack"
	// mostAskedAck is how many ids one message has.
	mostAskedAck = 10_000
	// ackWithin bounds the time that an acknowledgement at another node takes.
	ackWithin = 10 * time.Second
)

// acknowledgeElsewhere acknowledges entries that other nodes have handed out. It returns how many.
// Error: that of a node that may have them and does not answer.
func (s *Server) acknowledgeElsewhere(ctx context.Context, topic string, ids []entryID) (int, error) {
	scheduler := s.scheduler.Load()
	peers := scheduler.Peers()
	if len(peers) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, ackWithin)
	defer cancel()
	var group errgroup.Group
	var total atomic.Int64
	for part := range slices.Chunk(ids, mostAskedAck) {
		body := binary.BigEndian.AppendUint16(nil, uint16(len(topic)))
		body = append(body, topic...)
		for _, id := range part {
			body = binary.BigEndian.AppendUint64(body, id.ms)
			body = binary.BigEndian.AppendUint64(body, id.seq)
		}
		for _, peer := range peers {
			group.Go(func() error {
				answer, err := scheduler.Ask(ctx, peer, ackSubject, body)
				switch {
				case err == nil && len(answer) == 4:
					total.Add(int64(binary.BigEndian.Uint32(answer)))
				case errors.Is(err, tasks.ErrNodeAway), !errors.Is(err, tasks.ErrUnavailable):
					return err
				} // else the node has no such port
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return 0, err
		}
	}
	return int(total.Load()), nil
}

// acknowledgeFor acknowledges entries for another node.
func (s *Server) acknowledgeFor(ctx context.Context, _ string, body []byte) ([]byte, error) {
	malformed := errors.New("the message is malformed")
	if len(body) < 2 {
		return nil, malformed
	}
	length := int(binary.BigEndian.Uint16(body))
	body = body[2:]
	if len(body) < length || (len(body)-length)%16 != 0 {
		return nil, malformed
	}
	topic, body := string(body[:length]), body[length:]
	ids := make([]entryID, 0, len(body)/16)
	for ; len(body) > 0; body = body[16:] {
		ids = append(ids, entryID{binary.BigEndian.Uint64(body), binary.BigEndian.Uint64(body[8:])})
	}
	n, _, err := s.acknowledge(ctx, topic, ids)
	return binary.BigEndian.AppendUint32(nil, uint32(n)), err
}
