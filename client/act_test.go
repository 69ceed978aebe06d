package client_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
)

func TestAct(t *testing.T) {
	ctx, c := t.Context(), served(t)
	for i := range 4 {
		_, err := c.Schedule(ctx, client.Request{ID: fmt.Sprint("t", i), Topic: "x", Group: "g", Delay: time.Hour})
		check(t, "Schedule", err, nil)
	}
	before, err := c.Get(ctx, "t1")
	check(t, "Get", err, nil)
	a := client.Act{Action: client.MoveAction, Shift: -time.Minute, Query: client.Query{Topic: "x", DueFrom: time.Now(), Limit: 3}}
	moved := 0
	for {
		done, err := c.Act(ctx, a)
		if check(t, "Act", err, nil); len(done.Failed) != 0 {
			t.Errorf("refused %+v", done.Failed)
		}
		moved += done.Done
		if a.Query.Cursor = done.NextCursor; a.Query.Cursor == "" {
			break
		}
	}
	after, err := c.Get(ctx, "t1")
	if check(t, "Get", err, nil); moved != 4 || !after.Due.Equal(before.Due.Add(-time.Minute)) {
		t.Errorf("%d were moved, from %v to %v", moved, before.Due, after.Due)
	}
	done, err := c.Act(ctx, client.Act{Action: client.CancelAction, DryRun: true, Query: client.Query{Group: "g", State: client.Pending}})
	if check(t, "Act", err, nil); done.Matched != 4 || done.Done != 0 {
		t.Errorf("counted %+v", done)
	}
	done, err = c.Act(ctx, client.Act{Action: client.DeleteAction, IDs: []string{"t1"}})
	if check(t, "Act", err, nil); len(done.Failed) != 1 || !errors.Is(done.Failed[0].Problem, client.ErrNotDead) {
		t.Errorf("deleted %+v", done)
	}
	_, err = c.Act(ctx, client.Act{Action: client.CancelAction})
	check(t, "Act", err, client.ErrInvalid)
}

// Only lists select by node: anything else would be about the tasks of all.
func TestNodeSelectsInListsOnly(t *testing.T) {
	c := served(t)
	q := client.Query{Topic: "x", Node: "a"}
	for what, call := range map[string]func() error{
		"Act": func() error {
			_, err := c.Act(t.Context(), client.Act{Action: client.CancelAction, Query: q})
			return err
		},
		"ListDead":    func() error { _, err := c.ListDead(t.Context(), q); return err },
		"DeadReasons": func() error { _, err := c.DeadReasons(t.Context(), q); return err },
	} {
		if err := call(); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
