package events

import (
	"errors"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

func feed() (f *Feed, closing chan struct{}) {
	closing = make(chan struct{})
	return NewFeed(time.Now, closing, make(chan struct{})), closing
}

func subscribe(t *testing.T, f *Feed, filter task.EventFilter, remote bool) *Subscription {
	t.Helper()
	u, err := f.Subscribe(filter, remote)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestNothingIsLeftOfClosedSubscriptions(t *testing.T) {
	f, closing := feed()
	all := subscribe(t, f, task.EventFilter{}, true)
	xy := subscribe(t, f, task.EventFilter{Topics: []string{"x", "y", "x"}, Kinds: []task.EventKind{task.EventDue}}, false)
	if c := f.Counts(); c != (Counts{Subscriptions: 2, Remote: 1}) || !f.IsHeard() || !f.HearsDue() {
		t.Errorf("%+v", c)
	}
	for range 2 {
		all.Close()
		xy.Close()
	}
	if c := f.Counts(); c != (Counts{}) || f.IsHeard() || f.HearsDue() || len(f.all) != 0 || len(f.byTopic) != 0 {
		t.Errorf("%+v, %d of all topics, %d topics", c, len(f.all), len(f.byTopic))
	}
	close(closing)
	if _, err := f.Subscribe(task.EventFilter{}, false); !errors.Is(err, task.ErrClosed) {
		t.Error(err)
	}
}

// What finds no room is counted, and so is all that comes after it until the reader has come.
func TestLostUntilTheReaderComes(t *testing.T) {
	f, _ := feed()
	u := subscribe(t, f, task.EventFilter{Topics: []string{"x"}, Buffer: 1}, false)
	offer := func(topic, id string) { f.Offer(&task.Event{Kind: task.EventScheduled, Topic: topic}, []byte(id)) }
	offer("x", "a")
	offer("y", "other")
	offer("x", "b")
	offer("x", "c")
	events, lost, err := u.Next(t.Context())
	if err != nil || lost != 2 || len(events) != 1 || events[0].ID != "a" || events[0].At.IsZero() {
		t.Errorf("%+v, %d lost, %v", events, lost, err)
	}
	offer("x", "d")
	if events, lost, err = u.Next(t.Context()); err != nil || lost != 0 || len(events) != 1 || events[0].ID != "d" {
		t.Errorf("then %+v, %d lost, %v", events, lost, err)
	}
	if n := f.Counts().Lost; n != 2 {
		t.Errorf("%d lost in all", n)
	}
}
