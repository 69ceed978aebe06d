package client_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
)

func TestGroups(t *testing.T) {
	ctx, c := t.Context(), served(t)
	for i := range 5 {
		_, err := c.Schedule(ctx, client.Request{ID: fmt.Sprint("t", i), Topic: "x", Group: "g", Delay: time.Duration(5-i) * time.Hour})
		check(t, "Schedule", err, nil)
	}
	_, err := c.Schedule(ctx, client.Request{ID: "other", Topic: "x", Group: "h", Delay: time.Minute})
	check(t, "Schedule", err, nil)
	_, err = c.Schedule(ctx, client.Request{ID: "out", Topic: "y", Group: "g"})
	check(t, "Schedule", err, nil)
	_, err = c.Reserve(ctx, "y", client.Reservation{Wait: time.Minute})
	check(t, "Reserve", err, nil)

	p, err := c.Group(ctx, "g", 4, "")
	check(t, "Group", err, nil)
	rest, err := c.Group(ctx, "g", 0, p.NextCursor)
	check(t, "Group", err, nil)
	if len(p.Tasks) != 4 || p.Tasks[0].ID != "out" || p.Tasks[1].ID != "t4" || p.Tasks[1].Group != "g" || len(rest.Tasks) != 2 || rest.NextCursor != "" {
		t.Errorf("got %+v and %+v", p, rest)
	}
	var all []string
	for task, err := range c.All(ctx, client.Query{Group: "g", Topic: "x", State: client.Pending, Limit: 2}) {
		check(t, "All", err, nil)
		all = append(all, task.ID)
	}
	if fmt.Sprint(all) != "[t4 t3 t2 t1 t0]" {
		t.Errorf("got %v", all)
	}
	done, err := c.CancelGroup(ctx, "g")
	if check(t, "CancelGroup", err, nil); done.Cancelled != 5 || fmt.Sprint(done.Delivering) != "[out]" || done.MoreDelivering != 0 {
		t.Errorf("got %+v", done)
	}
	if done, err = c.CancelGroup(ctx, "unknown"); err != nil || done.Cancelled != 0 || len(done.Delivering) != 0 {
		t.Errorf("got %+v, %v", done, err)
	}
	for _, name := range []string{"", "..", "a/b", "a b"} {
		_, err = c.CancelGroup(ctx, name)
		check(t, "CancelGroup", err, client.ErrInvalid)
		_, err = c.Group(ctx, name, 0, "")
		check(t, "Group", err, client.ErrInvalid)
	}
	_, err = c.Get(ctx, "other")
	check(t, "Get", err, nil)
}
