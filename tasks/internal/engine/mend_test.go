package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// mendAt mends a dead task that another node has, and receives it.
func mendAt(t *testing.T, bury func(topic, id string), has, asked *Scheduler) {
	bury("x", "a")
	bury("x", "b")
	mend := &Mend{Payload: []byte(`{"mended":true}`), Headers: map[string]string{"by": "me"}}
	for what, r := range map[string]Requeue{
		"all":     {Mend: mend},
		"two":     {IDs: []string{"a", "b"}, Mend: mend},
		"headers": {IDs: []string{"a"}, Mend: &Mend{Headers: map[string]string{"by": "\n"}}},
		"target":  {IDs: []string{"a"}, Mend: &Mend{Target: &Target{Settings: []byte(`{"url":"http://a"}`)}}},
	} {
		if done, err := asked.Admin().Requeue(t.Context(), "x", r); !errors.Is(err, ErrInvalid) || done.Requeued != 0 {
			t.Errorf("%s: %+v, %v", what, done, err)
		}
	}
	_, err := asked.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"a"}, Mend: &Mend{Payload: make([]byte, asked.Admin().MaxPayload()+1)}})
	rig.Want(t, "Requeue with a large payload", err, ErrTooLarge)
	before, err := asked.Get(t.Context(), "a")
	if rig.Want(t, "Get", err, nil); before.State != Dead {
		t.Fatalf("a is %v", before.State)
	}
	done, err := asked.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"a"}, Mend: mend})
	if rig.Want(t, "Requeue", err, nil); done.Requeued != 1 || len(done.Unknown) > 0 {
		t.Fatalf("%+v", done)
	}
	after, err := has.Get(t.Context(), "a")
	if rig.Want(t, "Get", err, nil); string(after.Payload) != `{"mended":true}` || len(after.Headers) != 1 || after.Headers["by"] != "me" ||
		!after.Created.Equal(before.Created) || after.Revision != before.Revision+1 || after.Attempt != 0 {
		t.Errorf("%+v", after)
	}
	ds, err := asked.Reserve(t.Context(), "x", 2, 10*time.Second, time.Minute)
	if rig.Want(t, "Reserve", err, nil); len(ds) != 1 || string(ds[0].Payload) != `{"mended":true}` || ds[0].ID != "a" {
		t.Errorf("%d deliveries", len(ds))
	}
	_, err = asked.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"b"}, Mend: &Mend{Headers: map[string]string{}}})
	rig.Want(t, "Requeue", err, nil)
}

func TestMend(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		mendAt(t, func(topic, id string) { r.Bury(topic, id) }, r.Scheduler, r.Scheduler)
		rig.Pass(time.Second)
		r.Restart()
		got, err := r.Get(context.Background(), "a")
		if rig.Want(t, "Get", err, nil); string(got.Payload) != `{"mended":true}` || got.Headers["by"] != "me" {
			t.Errorf("after a restart %+v", got)
		}
	})
}

// A node mends the dead task of another one.
func TestMendAtAnotherNode(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		has, asked := f.Nodes[0], f.Nodes[1]
		bury := func(topic, id string) {
			_, err := has.Schedule(t.Context(), Request{ID: id, Topic: topic, Payload: []byte(`{}`)})
			rig.Want(t, "Schedule", err, nil)
			rig.Pass(time.Second)
			ds, err := has.Reserve(t.Context(), topic, 1, 10*time.Second, 0)
			if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
				t.Fatalf("reserved %d", len(ds))
			}
			_, err = has.Settle(t.Context(), Verdict{Verb: Bury, Reason: "refused"}, []string{ds[0].Receipt()})
			rig.Want(t, "Settle", err, nil)
		}
		mendAt(t, bury, has.Scheduler, asked.Scheduler)
		bury("x", "old")
		delete(has.Cluster().Fleet.Methods, cluster.MendMethod.Name) // as an older version
		_, err := asked.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"old"}, Mend: &Mend{Payload: []byte(`{"new":1}`)}})
		rig.Want(t, "Requeue at an older version", err, ErrUnavailable)
	})
}
