package respapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// What became of an id of an XACK, or of a verb like it.
const (
	ackUnknown byte = iota // the node has not handed it out, or it is over
	acked
	ackedBefore // the id came twice
	ackFailed   // the outcome is not known
)

// verdicts are those of XACK and XNACK.
var verdicts = map[tasks.Verb]tasks.Verdict{
	tasks.Ack:     {Verb: tasks.Ack},
	tasks.Return:  {Verb: tasks.Return},
	tasks.Release: {Verb: tasks.Release, Reason: "XNACK FAIL"},
	tasks.Bury:    {Verb: tasks.Bury, Reason: "XNACK FATAL"},
}

// settleHere settles the entries with these ids that this node has handed out. It returns what
// became of each. The error is the gravest one of those that failed.
func (s *Server) settleHere(ctx context.Context, verb tasks.Verb, topic string, ids []entryID) (states []byte, err error) {
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
	_, err = s.settle(ctx, t, verdicts[verb], list, func(e *outEntry, _ *tasks.Settled) {
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

// runAck answers XACK key group id [id ...], XDEL key id [id ...], which acknowledges entries that
// are out, and XACKDEL key group [KEEPREF|DELREF|ACKED] IDS n id [id ...]: there is one group.
func runAck(x *call) { ackAll([]*call{x}) }

// runNack answers XNACK key group SILENT|FAIL|FATAL IDS n id [id ...] [RETRYCOUNT n] [FORCE].
func runNack(x *call) {
	verb, known := map[string]tasks.Verb{"silent": tasks.Return, "fail": tasks.Release, "fatal": tasks.Bury}[strings.ToLower(string(x.args[3]))]
	if !known {
		x.out.Error(errSyntax)
		return
	}
	texts, rest, ok := x.readIDs(x.args[4:])
	if !ok || !x.nackOptions(rest) {
		return
	}
	topic, ids, ok := x.entries(texts)
	if !ok {
		return
	}
	if topic == "" {
		x.out.Int(0)
		return
	}
	states, err := x.c.server.settleEntries(x.ctx, verb, topic, ids)
	x.answerCount(states, err)
}

// nackOptions reads what follows the ids of an XNACK. It answers and reports false if it is wrong.
// Nothing of it has an effect: entries are tasks, which count their attempts.
func (x *call) nackOptions(rest [][]byte) bool {
	for i := 0; i < len(rest); i++ {
		switch {
		case is(rest[i], "force"):
		case is(rest[i], "retrycount") && i+1 < len(rest):
			i++
			if _, ok := x.number(rest[i], errNotInteger); !ok {
				return false
			}
		default:
			x.out.Error(errSyntax)
			return false
		}
	}
	return true
}

// readIDs reads IDS n id [id ...] and returns what follows. It answers and reports false if that is
// wrong.
func (x *call) readIDs(args [][]byte) (ids, rest [][]byte, ok bool) {
	const badNumber = "ERR Number of IDs must be a positive integer"
	if !is(args[0], "ids") {
		x.out.Error(errSyntax)
		return nil, nil, false
	}
	n, ok := x.number(args[1], badNumber)
	switch args = args[2:]; {
	case !ok:
		return nil, nil, false
	case n < 1:
		x.out.Error(badNumber)
	case n > int64(len(args)):
		x.out.Error("ERR The `numids` parameter must match the number of arguments")
	default:
		return args[:n], args[n:], true
	}
	return nil, nil, false
}

// An acking is an XACK, XACKDEL or XDEL of a pipeline: its ids are those of its topic from a place
// on.
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

// readAck reads an XACK, XACKDEL or XDEL. It answers and reports false if there is nothing to be
// done.
func (x *call) readAck() (topic string, ids []entryID, ok bool) {
	args := x.args[2:]
	switch x.verb.name {
	case "xack":
		args = args[1:]
	case "xackdel":
		args = args[1:]
		if is(args[0], "keepref") || is(args[0], "delref") || is(args[0], "acked") {
			args = args[1:]
		}
		var rest [][]byte
		if args, rest, ok = x.readIDs(args); ok && len(rest) > 0 {
			x.out.Error("ERR The `numids` parameter must match the number of arguments")
			ok = false
		}
		if !ok {
			return "", nil, false
		}
	}
	topic, ids, ok = x.entries(args)
	if ok && topic == "" {
		x.answerAck(make([]byte, len(ids)), nil)
	}
	return topic, ids, ok && topic != ""
}

// entries reads the ids of entries of the stream that the first argument names, whose topic is ""
// if the key is none of a stream. It answers and reports false if they are wrong.
func (x *call) entries(args [][]byte) (topic string, ids []entryID, ok bool) {
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
	return topic, ids, true
}

// answerAcks acknowledges entries of a stream.
func answerAcks(list []acking, topic string, ids []entryID) {
	x := list[0].call
	states, err := x.c.server.settleEntries(x.ctx, tasks.Ack, topic, ids)
	for _, a := range list {
		a.call.answerAck(states[a.from:a.to], err)
	}
}

// answerAck answers by what became of the ids.
func (x *call) answerAck(states []byte, err error) {
	if x.verb.name != "xackdel" || slices.Contains(states, ackFailed) {
		x.answerCount(states, err)
		return
	}
	x.out.Array(len(states))
	for _, state := range states {
		if state == acked {
			x.out.Int(1)
		} else {
			x.out.Int(-1) // there is no such entry
		}
	}
}

// answerCount answers how many of the ids were settled.
func (x *call) answerCount(states []byte, err error) {
	if slices.Contains(states, ackFailed) {
		x.fail(err)
	} else {
		x.out.Int(int64(bytes.Count(states, []byte{acked})))
	}
}

// settleEntries settles entries, also those that other nodes have handed out. The results are those
// of settleHere.
func (s *Server) settleEntries(ctx context.Context, verb tasks.Verb, topic string, ids []entryID) (states []byte, err error) {
	states, err = s.settleHere(ctx, verb, topic, ids)
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
		more, failed := s.settleElsewhere(ctx, verb, topic, unknown)
		for i, place := range places {
			states[place] = more[i]
		}
		err = graver(err, failed)
	}
	return states, err
}

// settleSubjects are the subjects of messages that settle entries of another node: the topic, and
// the ids. The answer has a byte for each id: what became of it.
var settleSubjects = map[tasks.Verb]string{
	tasks.Ack: "resp.ack", tasks.Return: "resp.return", tasks.Release: "resp.release", tasks.Bury: "resp.bury",
}

const (
	// mostAskedAck is how many ids one message has.
	mostAskedAck = 10_000
	// ackWithin bounds the time that a settlement at another node takes.
	ackWithin = 10 * time.Second
)

// settleElsewhere settles entries that other nodes have handed out. It returns what became of each:
// an id that no node has settled has failed if a node that may have it does not answer. Error: the
// gravest one of such nodes.
func (s *Server) settleElsewhere(ctx context.Context, verb tasks.Verb, topic string, ids []entryID) (states []byte, err error) {
	states = make([]byte, len(ids))
	scheduler := s.scheduler.Load().Admin()
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
				answer, failed := scheduler.Ask(ctx, peer, settleSubjects[verb], body)
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
// failed there: a node that answers that one has does not say whether it was settled.
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

// onSettle settles entries for another node.
func (s *Server) onSettle(verb tasks.Verb) tasks.MessageHandler {
	return func(ctx context.Context, _ string, body []byte) ([]byte, error) {
		f := frameReader{b: body}
		topic := f.text()
		var ids []entryID
		for len(f.b) > 0 {
			ids = append(ids, f.id())
		}
		if f.bad {
			return nil, errBadFrame
		}
		states, err := s.settleHere(ctx, verb, topic, ids)
		if err != nil {
			s.log.Debug("a settlement for another node failed", "topic", topic, "error", err)
		}
		return states, nil
	}
}
