package cluster_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A scan finds each task at whatever node once, whichever node is asked for a page, and without
// payloads.
func TestScan(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		const n = 200
		for i := range n {
			topic := "x"
			if i%4 == 0 {
				topic = "y"
			}
			req := Request{ID: fmt.Sprint("task-", i), Topic: topic, Delay: time.Hour, Payload: []byte("payload"), Headers: map[string]string{"a": "b"}}
			if _, err := f.Nodes[i%3].Schedule(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		for _, limit := range []int{1, 10, 1000} {
			found := make(map[string]int)
			q := ScanQuery{Topics: []string{"x"}, Limit: limit}
			for pages := 0; pages == 0 || q.Cursor != 0; pages++ {
				p, err := f.Nodes[pages%3].Admin().Scan(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				if len(p.Tasks) > limit {
					t.Errorf("a page of %d tasks has %d", limit, len(p.Tasks))
				}
				for _, x := range p.Tasks {
					found[x.ID]++
					if x.Topic != "x" || x.Payload != nil || x.Headers["a"] != "b" || x.State != Pending || x.Revision != 1 {
						t.Errorf("a task is %+v", x)
					}
				}
				q.Cursor = p.Cursor
			}
			for id, times := range found {
				if times != 1 {
					t.Errorf("limit %d: %s was found %d times", limit, id, times)
				}
			}
			if len(found) != n*3/4 {
				t.Errorf("limit %d: %d tasks were found", limit, len(found))
			}
		}
		if p, err := f.Nodes[0].Admin().Scan(t.Context(), ScanQuery{Limit: 1, Cursor: 1 << 60}); err != nil || len(p.Tasks) != 0 || p.Cursor != 0 {
			t.Errorf("behind the end: %+v (%v)", p, err)
		}
		if _, err := f.Nodes[0].Admin().Scan(t.Context(), ScanQuery{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("without a limit: %v", err)
		}
	})
}

// Cancel may be repeated. CancelOnce tells who has cancelled.
func TestCancelOnce(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		for at, n := range f.Nodes {
			id := fmt.Sprint("task-", at)
			if _, err := f.Nodes[0].Schedule(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour}); err != nil {
				t.Fatal(err)
			}
			if err := n.Admin().CancelOnce(t.Context(), id); err != nil {
				t.Errorf("node %s: %v", n.Name, err)
			}
			for _, n := range f.Nodes {
				if err := n.Admin().CancelOnce(t.Context(), id); !errors.Is(err, ErrNotFound) {
					t.Errorf("node %s, again: %v", n.Name, err)
				}
			}
			if err := n.Cancel(t.Context(), id); err != nil {
				t.Errorf("node %s: a repeated Cancel: %v", n.Name, err)
			}
		}
	})
}
