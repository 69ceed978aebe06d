package rig

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Courier is a way of delivery whose tasks may have an address of their own. It notes what went
// where, in batches if it takes them.
type Courier struct {
	KindName tasks.Kind
	Batches  bool

	mu   sync.Mutex
	sent []string
	Fail func(d *tasks.Delivery, to string) error // nil: nothing fails
}

// Failing lets deliveries end with what fail returns from now on; nil: nothing fails.
func (c *Courier) Failing(fail func(d *tasks.Delivery, to string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Fail = fail
}

// Kind implements Way.
func (c *Courier) Kind() tasks.Kind { return c.KindName }

// Deliverer implements Way.
func (c *Courier) Deliverer(_ string, settings json.RawMessage) (tasks.Deliverer, error) {
	var set struct{ To string }
	if err := json.Unmarshal(settings, &set); err != nil || set.To == "" {
		return nil, task.Invalid("to", "must be given")
	}
	if c.Batches {
		return &Ride{Round{c, set.To}}, nil
	}
	return &Round{c, set.To}, nil
}

// SentTo returns what has gone where since the last call, in the order of the texts.
func (c *Courier) SentTo() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.sent
	c.sent = nil
	slices.Sort(all)
	return all
}

// Want fails the test unless just this has gone since the last call.
func (c *Courier) Want(t *testing.T, what string, sent ...string) {
	t.Helper()
	if diff := cmp.Diff(sent, c.SentTo()); diff != "" {
		t.Errorf("%s: (-wanted +sent)\n%s", what, diff)
	}
}

// A Round is a Deliverer of a Courier.
type Round struct {
	*Courier
	To string
}

func (r *Round) where(own json.RawMessage) (string, error) {
	var set map[string]string
	if err := json.Unmarshal(own, &set); err != nil || set["to"] == "" || len(set) > 1 || strings.HasPrefix(set["to"], "no") {
		return "", task.Invalid("to", "must be an address")
	}
	return set["to"], nil
}

// CheckTarget implements the check of what a task says of its delivery.
func (r *Round) CheckTarget(own json.RawMessage) (string, error) {
	to, err := r.where(own)
	return "city of " + to, err
}

// Deliver implements Deliverer.
func (r *Round) Deliver(_ context.Context, d *tasks.Delivery) error {
	to := r.To
	if own := d.OwnSettings(); own != nil {
		var err error
		if to, err = r.where(own); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.sent = append(r.sent, d.ID+" to "+to)
	fail := r.Fail
	r.mu.Unlock()
	if fail != nil {
		return fail(d, to)
	}
	return nil
}

// A Ride is a Round that takes batches.
type Ride struct{ Round }

// DeliverBatch implements BatchDeliverer.
func (r *Ride) DeliverBatch(ctx context.Context, ds []*tasks.Delivery) []error {
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = r.Deliver(ctx, d)
	}
	return errs
}

// Own is the target with an address.
func Own(where string) *tasks.Target {
	return &tasks.Target{Settings: json.RawMessage(`{"to":"` + where + `"}`)}
}

// Allowing is a topic that goes to Rome and lets tasks choose.
func Allowing(kind tasks.Kind) tasks.TopicSettings {
	return tasks.TopicSettings{Kind: kind, Delivery: json.RawMessage(`{"to":"rome"}`), TaskDelivery: true}
}
