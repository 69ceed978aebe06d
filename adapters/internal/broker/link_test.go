package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A fake is a broker to which connections may be made, or not.
type fake struct {
	made, ended int
	err         error
	gone        bool // connections have ended
}

func (f *fake) link() *Link[int] {
	return &Link[int]{Pause: time.Second, Ended: func(int) bool { return f.gone }, Connect: func() (int, error) {
		time.Sleep(100 * time.Millisecond)
		f.made++
		f.gone = false
		return f.made, f.err
	}}
}

func TestLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{err: errors.New("nothing listens")}
		l := f.link()
		get := func(want int, wantErr error) {
			t.Helper()
			if conn, err := l.Get(t.Context()); conn != want && err == nil || !errors.Is(err, wantErr) || f.made != want {
				t.Errorf("connection %d of %d, %v; want %d, %v", conn, f.made, err, want, wantErr)
			}
		}
		get(1, f.err)
		get(1, f.err) // too soon for another attempt
		time.Sleep(time.Second)
		f.err = nil
		go get(2, nil)
		get(2, nil)
		synctest.Wait()
		get(2, nil)
		f.gone = true
		get(3, nil)
		l.Close(func(conn int) { f.ended = conn })
		if f.ended != 3 {
			t.Errorf("connection %d was ended", f.ended)
		}
		get(3, ErrClosed)
		l.Close(func(int) {})
	})
}

// A caller that gives up does not end the attempt of others. Close waits for it.
func TestLinkOfImpatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		l := f.link()
		soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.Get(soon); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Get(gone); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		l.Close(func(conn int) { f.ended = conn })
		if f.ended != 1 {
			t.Error("the connection that was being made was not ended")
		}
	})
}

func TestCloseWithoutConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{err: errors.New("nothing listens")}
		f.link().Close(func(int) { t.Error("ended") })
		l := f.link()
		_, _ = l.Get(t.Context())
		l.Close(func(int) { t.Error("ended") })
	})
}

func TestHeaders(t *testing.T) {
	d := &tasks.Delivery{Task: tasks.Task{ID: "a", Topic: "t", Due: time.UnixMilli(5), Attempt: 2,
		Headers: map[string]string{"tenant": "", "lapse-id": "forged", "nats-x": "y", "x-y": "z"}}}
	got := map[string]string{}
	var first string
	for name, value := range Headers(d, "nats-", "x-") {
		if first == "" {
			first = name
		}
		got[name] = value
	}
	if _, own := got["tenant"]; !own || len(got) != 5 || first != "lapse-id" || got["lapse-id"] != "a" || got["lapse-due"] != "1970-01-01T00:00:00.005Z" {
		t.Errorf("%v, the first one is %s", got, first)
	}
	d.Group = "g"
	for name := range Headers(d) {
		got[name] = ""
		if name == "lapse-topic" {
			break // and it ends there
		}
	}
	if _, grouped := got["lapse-group"]; grouped {
		t.Errorf("%v", got)
	}
}
