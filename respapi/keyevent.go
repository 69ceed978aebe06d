package respapi

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/keyid"
	"github.com/lapsehq/lapse/tasks/object"
	"github.com/lapsehq/lapse/tasks/task"
)

// KindKeyevent is the way of delivery that publishes expired events.
const KindKeyevent task.Kind = "keyevent"

// Keyevent is a way of delivery: the key of each task is published as an expired event to the
// subscribers of all nodes, and acknowledged when at least one receiver among them got it. As long
// as there is no receiver, tasks wait; those that no subscriber of other keys wants wait aside. It
// implements task.Way and task.Tally. The zero value is ready: tasks wait until Attach.
//
// A receiver is a subscriber that names the channel of the event, or without any one that names
// channels of keys, and that reads. It got an event when its machine has it. Whether the program
// has read it is not known: what no receiver has read for sure is published again (taken.go). An
// event may come twice for that reason, or when its node has ended before the acknowledgement was
// recorded, or when another node has published it and its answer was lost.
type Keyevent struct {
	server    atomic.Pointer[Server]
	published atomic.Int64
	unheard   atomic.Int64
}

// Attach says which server has the subscribers.
func (k *Keyevent) Attach(s *Server) { k.server.Store(s) }

// Kind implements task.Way.
func (k *Keyevent) Kind() task.Kind { return KindKeyevent }

// Deliverer implements task.Way. The delivery object has no fields but its kind.
func (k *Keyevent) Deliverer(topic string, settings json.RawMessage) (task.Deliverer, error) {
	if err := object.Parse(settings).Err(); err != nil {
		return nil, err
	}
	return &publisher{way: k, topic: topic}, nil
}

// Tally implements task.Tally. published has the events that a subscriber got.
func (k *Keyevent) Tally() map[string]int64 {
	return map[string]int64{"published": k.published.Load(), "no_receiver": k.unheard.Load()}
}

// A publisher delivers the tasks of one topic. It implements task.BatchDeliverer.
type publisher struct {
	way   *Keyevent
	topic string
}

// Deliver implements task.Deliverer.
func (p *publisher) Deliver(ctx context.Context, d *task.Delivery) error {
	return p.DeliverBatch(ctx, []*task.Delivery{d})[0]
}

// DeliverBatch implements task.BatchDeliverer.
func (p *publisher) DeliverBatch(ctx context.Context, ds []*task.Delivery) []error {
	errs := make([]error, len(ds))
	var got []bool
	why := task.ErrNoReceiver
	if s := p.way.server.Load(); s != nil && s.wanted()&anyReceiver != 0 {
		keys := make([]string, len(ds))
		for i, d := range ds {
			keys[i] = eventKey(d.ID, d.Headers)
		}
		var open bool
		if got, open = s.publishExpired(ctx, p.topic, keys); !open && s.wanted()&keyReceiver != 0 {
			why = task.ErrUnwanted // there are subscribers of other keys
		}
	}
	missed := 0
	for i := range errs {
		if got == nil || !got[i] {
			errs[i] = why
			missed++
		}
	}
	p.way.unheard.Add(int64(missed))
	p.way.published.Add(int64(len(ds) - missed))
	return errs
}

// eventKey returns the key of a task. A task that no client of Redis can have made is its id.
func eventKey(id string, headers map[string]string) string {
	if key, ok := keyid.Decode(id, headers[keyid.Header]); ok {
		return key
	}
	return id
}

// publishExpired publishes expired events to the subscribers of all nodes. The result says of each
// whether one of them that counts got it. open: one that did not get some may want them.
func (s *Server) publishExpired(ctx context.Context, topic string, keys []string) (got []bool, open bool) {
	nodes, scheduler := s.peers.with(classExpired), s.scheduler.Load().Admin()
	if len(nodes) == 0 || scheduler.Scheduler == nil {
		return s.publishHere(ctx, topic, keys, s.peers.with(anyReceiver) != nil)
	}
	body := appendText(nil, topic)
	for _, key := range keys {
		body = appendText(body, key)
	}
	ctx, cancel := within(ctx, answerWithin)
	defer cancel()
	answers := make([][]byte, len(nodes))
	var group sync.WaitGroup
	for i, node := range nodes {
		group.Go(func() { answers[i] = s.askExpired(ctx, scheduler, node, body) })
	}
	got, open = s.publishHere(ctx, topic, keys, s.peers.with(anyReceiver) != nil)
	if !slices.Contains(got, false) { // receivers of other nodes that are slow do not pace these
		defer time.AfterFunc(slowWithin, cancel).Stop()
	}
	group.Wait()
	for _, answer := range answers {
		open = open || len(answer) != len(got)
		for i := range min(len(answer), len(got)) {
			got[i] = got[i] || answer[i] == eventGot
			open = open || answer[i] == eventOpen
		}
	}
	return got, open
}
