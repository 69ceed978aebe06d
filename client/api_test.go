package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/client"
)

// The life of a task, over a real connection to a real server.
func TestTasks(t *testing.T) {
	ctx, c := t.Context(), served(t)
	r := client.Request{ID: "a", Topic: "x", Delay: 36 * time.Hour, Payload: []byte(`{"n": 1.50,"t":"<&>"}`),
		Headers: map[string]string{"tenant": "eu"}, MaxLateness: 2 * time.Hour, Group: "g"}
	made, err := c.Schedule(ctx, r)
	check(t, "Schedule", err, nil)
	if !made.Created || made.State != client.Pending || made.MaxLateness != client.Duration(2*time.Hour) || made.Group != "g" ||
		made.Headers["tenant"] != "eu" || made.Revision != 1 || made.Node != "n1" || time.Until(made.Due) < 35*time.Hour {
		t.Errorf("got %+v", made)
	}
	again, err := c.Schedule(ctx, r)
	check(t, "Schedule again", err, nil)
	if again.Created || !again.Due.Equal(made.Due) {
		t.Errorf("got %+v", again)
	}
	r.Delay = time.Hour
	_, err = c.Schedule(ctx, r)
	check(t, "other content", err, client.ErrExists)
	due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	replaced, err := c.Replace(ctx, client.Request{ID: "a", Topic: "x", Due: due})
	check(t, "Replace", err, nil)
	if replaced.Created || !replaced.Due.Equal(due) || replaced.Payload != nil || replaced.MaxLateness != 0 {
		t.Errorf("got %+v", replaced)
	}
	changed, err := c.Reschedule(ctx, "a", client.Move{Due: due.Add(time.Minute), Payload: []byte(` [1] `)})
	check(t, "Change", err, nil)
	if !changed.Due.Equal(due.Add(time.Minute)) || string(changed.Payload) != "[1]" || changed.Revision != 3 {
		t.Errorf("got %+v", changed)
	}
	if changed, err = c.Reschedule(ctx, "a", client.After(0)); err != nil || changed.Due.After(time.Now().Add(time.Second)) {
		t.Errorf("got %+v, %v", changed, err)
	}
	if now, err := c.Get(ctx, "a"); err != nil || now.ETag != changed.ETag || now.ETag == "" {
		t.Errorf("got %+v, %v, want the ETag %s", now, err, changed.ETag)
	}
	old := client.IfMatch(ctx, replaced.ETag)
	check(t, "Cancel of another revision", c.Cancel(old, "a"), client.ErrRevision)
	_, err = c.Replace(old, client.Request{ID: "a", Topic: "x"})
	check(t, "Put of another revision", err, client.ErrRevision)
	_, err = c.Hold(old, "a")
	check(t, "Hold of another revision", err, client.ErrRevision)
	held, err := c.Hold(client.IfMatch(ctx, changed.ETag), "a")
	check(t, "Hold of this revision", err, nil)
	check(t, "Cancel", c.Cancel(client.IfMatch(ctx, held.ETag), "a"), nil)
	check(t, "Cancel again", c.Cancel(ctx, "a"), nil)
	_, err = c.Get(ctx, "a")
	check(t, "Get", err, client.ErrNotFound)
	p := (*client.Problem)(nil)
	if !errors.As(err, &p) || p.Status != http.StatusNotFound || p.RequestID == "" || p.Type != "/problems/not_found" {
		t.Errorf("got %+v", p)
	}
	_, err = c.Schedule(ctx, client.Request{Topic: "no such", Delay: -1})
	check(t, "a bad request", err, client.ErrInvalid)
	if !errors.As(err, &p) || len(p.Fields) != 2 {
		t.Errorf("got %+v", p)
	}
	_, err = c.Schedule(ctx, client.Request{Topic: "x", Payload: []byte(`{`)})
	check(t, "a bad payload", err, client.ErrInvalid)
	_, err = c.Schedule(ctx, client.Request{Topic: "x", Payload: bytes.Repeat([]byte(" "), 1<<17)})
	check(t, "an empty payload", err, client.ErrInvalid)
	_, err = c.Schedule(ctx, client.Request{Topic: "x", Payload: []byte(`"` + string(bytes.Repeat([]byte("x"), 1<<17)) + `"`)})
	check(t, "a large payload", err, client.ErrTooLarge)
}

// A receiver gets the payload byte for byte, through single calls and through batches.
func TestPayloadBytes(t *testing.T) {
	ctx, c := t.Context(), served(t)
	payload := []byte("{ \"n\": 1.50,\n\"t\":\"<&>\\u00e9\" }")
	_, err := c.Schedule(ctx, client.Request{ID: "single", Topic: "x", Payload: payload})
	check(t, "Schedule", err, nil)
	_, err = c.ScheduleBatch(ctx, []client.Request{{ID: "batch", Topic: "x", Payload: payload}})
	check(t, "ScheduleBatch", err, nil)
	for _, d := range reserved(t, c, 2) {
		want := `{"n":1.50,"t":"<&>` + "\\u00e9" + `"}`
		var compact bytes.Buffer
		for _, b := range d.Payload {
			if b != ' ' && b != '\n' {
				compact.WriteByte(b)
			}
		}
		if compact.String() != want {
			t.Errorf("%s: got %s", d.ID, d.Payload)
		}
	}
}

func TestBatch(t *testing.T) {
	ctx, c := t.Context(), served(t)
	batch := []client.Request{{ID: "a", Topic: "x", Delay: time.Hour}, {Topic: "x", Delay: time.Hour}, {ID: "a", Topic: "x"}, {ID: "b", Topic: "?"}}
	got, err := c.ScheduleBatch(ctx, batch)
	check(t, "ScheduleBatch", err, nil)
	if got[0].Problem != nil || got[0].ID != "a" || got[1].Problem != nil || len(got[1].ID) != 36 {
		t.Errorf("taken: %+v", got[:2])
	}
	if !errors.Is(got[3].Problem, client.ErrInvalid) || got[3].ID != "b" || got[2].Problem == nil {
		t.Errorf("refused: %+v", got[2:])
	}
	again, err := c.ScheduleBatch(ctx, []client.Request{{ID: "new", Topic: "x"}, batch[0], batch[2]})
	check(t, "ScheduleBatch again", err, nil)
	if again[0].Repeated || !again[1].Repeated || again[2].Repeated || again[2].Problem == nil {
		t.Errorf("repeated: %+v", again)
	}
	_, err = c.SetTopic(ctx, "kept", client.Settings{KeepFinished: client.Duration(time.Hour)}, 0)
	check(t, "SetTopic", err, nil)
	kept := []client.Request{{ID: "kept", Topic: "kept", Delay: time.Hour}, {ID: "new", Topic: "x"}}
	_, err = c.ScheduleBatch(ctx, kept[:1])
	check(t, "ScheduleBatch of a task to keep", err, nil)
	check(t, "Cancel", c.Cancel(ctx, "kept"), nil)
	again, err = c.ScheduleBatch(ctx, kept)
	check(t, "ScheduleBatch of a kept task", err, nil)
	if !again[0].Repeated || !again[0].Finished || !again[1].Repeated || again[1].Finished {
		t.Errorf("kept: %+v", again)
	}
	_, err = c.ScheduleBatch(ctx, []client.Request{{Topic: "x"}, {Topic: "x", Payload: []byte("nope")}})
	check(t, "a payload that is no JSON", err, client.ErrInvalid)
	if got, err := c.ScheduleBatch(ctx, nil); err != nil || len(got) != 0 {
		t.Errorf("none: %+v, %v", got, err)
	}
}

func TestList(t *testing.T) {
	ctx, c := t.Context(), served(t)
	for i := range 7 {
		_, err := c.Schedule(ctx, client.Request{ID: fmt.Sprint(i), Topic: "x", Delay: time.Hour + time.Duration(i)*time.Second})
		check(t, "Schedule", err, nil)
	}
	page, err := c.List(ctx, client.Query{Topic: "x", State: client.Pending, Limit: 3})
	check(t, "List", err, nil)
	if len(page.Tasks) != 3 || page.NextCursor == "" {
		t.Errorf("got %+v", page)
	}
	var ids []string
	for task, err := range c.All(ctx, client.Query{Limit: 2}) {
		check(t, "All", err, nil)
		ids = append(ids, task.ID)
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3", "4", "5", "6"}, ids); diff != "" {
		t.Error(diff)
	}
	for _, err = range c.All(ctx, client.Query{Limit: 2}) {
		check(t, "All", err, nil)
		break
	}
	_, err = c.List(ctx, client.Query{Limit: 100_000, State: "odd"})
	check(t, "List", err, client.ErrInvalid)
	for _, err = range c.All(ctx, client.Query{State: "odd"}) {
		check(t, "All", err, client.ErrInvalid)
	}
}

// reserved takes n tasks of topic x. They become ready one by one.
func reserved(t *testing.T, c *client.Client, n int) (all []client.Delivery) {
	t.Helper()
	for len(all) < n {
		got, err := c.Reserve(t.Context(), "x", client.Reservation{Max: n, Wait: time.Minute, Lease: time.Minute})
		check(t, "Reserve", err, nil)
		all = append(all, got...)
	}
	return all
}

func TestReceivers(t *testing.T) {
	ctx, c := t.Context(), served(t)
	for _, id := range []string{"a", "b", "c", "d"} {
		_, err := c.Schedule(ctx, client.Request{ID: id, Topic: "x", Delay: time.Hour})
		check(t, "Schedule", err, nil)
		fired, err := c.Fire(ctx, id)
		if check(t, "Fire", err, nil); fired.ID != id {
			t.Errorf("got %+v", fired)
		}
	}
	got := reserved(t, c, 4)
	if got[0].State != client.Delivering || got[0].Attempt != 1 || time.Until(got[0].LeaseUntil) < 50*time.Second {
		t.Fatalf("got %+v", got)
	}
	_, err := c.Reschedule(ctx, got[0].ID, client.After(time.Hour))
	check(t, "Change", err, client.ErrDelivering)
	check(t, "Cancel", c.Cancel(ctx, got[0].ID), client.ErrDelivering)
	s, err := c.Extend(ctx, time.Hour, got[0].Receipt)
	if check(t, "Extend", err, nil); s.Settled != 1 || s.LeaseUntil == nil || time.Until(*s.LeaseUntil) < 50*time.Minute {
		t.Errorf("got %+v", s)
	}
	s, err = c.Ack(ctx, got[0].Receipt, "nonsense", got[1].Receipt)
	check(t, "Ack", err, nil)
	if s.Settled != 2 || !s.Recorded || len(s.Errors) != 1 || s.Errors[0].Index != 1 {
		t.Errorf("got %+v", s)
	}
	check(t, "Ack", s.Err(), client.ErrReceipt)
	later := time.Hour
	s, err = c.Release(ctx, &later, "no stock", got[2].Receipt)
	if check(t, "Release", err, nil); s.Settled != 1 || s.Err() != nil {
		t.Errorf("got %+v", s)
	}
	if s, err = c.Release(ctx, nil, "", got[2].Receipt); err != nil || !errors.Is(s.Err(), client.ErrStale) {
		t.Errorf("got %+v, %v", s, err)
	}
	released, err := c.Get(ctx, got[2].ID)
	if check(t, "Get", err, nil); released.LastError != "no stock" || time.Until(released.NextAt) < 50*time.Minute {
		t.Errorf("got %+v", released)
	}
	_, err = c.Bury(ctx, "poison", got[3].Receipt)
	check(t, "Bury", err, nil)
	_, err = c.Fire(ctx, got[3].ID)
	check(t, "Fire", err, client.ErrDead)
	_, err = c.Ack(ctx)
	check(t, "no receipts", err, client.ErrInvalid)
	if got, err := c.Reserve(ctx, "x", client.Reservation{}); err != nil || len(got) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestDead(t *testing.T) {
	ctx, c := t.Context(), served(t)
	for i := range 5 {
		_, err := c.Schedule(ctx, client.Request{ID: fmt.Sprint(i), Topic: "x"})
		check(t, "Schedule", err, nil)
	}
	for _, d := range reserved(t, c, 5) {
		_, err := c.Bury(ctx, "poison", d.Receipt)
		check(t, "Bury", err, nil)
	}
	n := 0
	for task, err := range c.AllDead(ctx, client.Query{Topic: "x", Limit: 2}) {
		check(t, "AllDead", err, nil)
		if n++; task.State != client.Dead || task.LastError != "poison" || task.Reason != client.Buried || task.DiedAt == nil {
			t.Errorf("got %+v", task)
		}
	}
	if n != 5 {
		t.Errorf("%d are dead", n)
	}
	now := time.Now()
	for _, f := range []struct {
		query client.Query
		want  int
	}{
		{client.Query{Error: "POISON", Reason: client.Buried, DiedFrom: now.Add(-time.Hour), DiedTo: now.Add(time.Hour)}, 5},
		{client.Query{IDPrefix: "3"}, 1},
		{client.Query{Error: "none"}, 0},
		{client.Query{Reason: client.Exhausted}, 0},
		{client.Query{DiedFrom: now.Add(time.Hour)}, 0},
		{client.Query{DiedTo: now.Add(-time.Hour)}, 0},
	} {
		f.query.Topic = "x"
		p, err := c.ListDead(ctx, f.query)
		if err != nil || len(p.Tasks) != f.want {
			t.Errorf("ListDead(%+v) = %+v, %v; want %d", f.query, p, err, f.want)
		}
		f.query.State = client.Dead
		if p, err = c.List(ctx, f.query); err != nil || len(p.Tasks) != f.want {
			t.Errorf("List(%+v) = %+v, %v; want %d", f.query, p, err, f.want)
		}
	}
	r, err := c.RequeueDead(ctx, "x", client.Requeue{IDs: []string{"0", "unknown", "1"}, Delay: time.Hour})
	if err != nil || r.Requeued != 2 || !slices.Equal(r.Unknown, []string{"unknown"}) {
		t.Errorf("requeued %+v, %v", r, err)
	}
	if task, err := c.Get(ctx, "0"); err != nil || time.Until(task.Due) < 50*time.Minute || task.Attempt != 0 || task.Reason != "" {
		t.Errorf("back comes %+v, %v", task, err)
	}
	check(t, "DeleteDead", c.DeleteDead(ctx, "x", "2"), nil)
	// An empty list of ids is an error. It does not mean all.
	for name, r := range map[string]client.Requeue{
		"no ids": {}, "both": {IDs: []string{"3"}, All: true}, "two deadlines": {All: true, Delay: 1, Due: time.Now()},
	} {
		_, err = c.RequeueDead(ctx, "x", r)
		check(t, "RequeueDead, "+name, err, client.ErrInvalid)
	}
	check(t, "DeleteDead without ids", c.DeleteDead(ctx, "x", []string{}...), client.ErrInvalid)
	due := time.Now().Add(24 * time.Hour).Truncate(time.Millisecond)
	if r, err = c.RequeueDead(ctx, "x", client.Requeue{All: true, Due: due}); err != nil || r.Requeued != 2 {
		t.Errorf("requeued %+v, %v", r, err)
	}
	if task, err := c.Get(ctx, "3"); err != nil || !task.Due.Equal(due) {
		t.Errorf("back comes %+v, %v", task, err)
	}
	check(t, "DeleteAllDead", c.DeleteAllDead(ctx, "x"), nil)
	_, err = c.ListDead(ctx, client.Query{})
	check(t, "ListDead", err, client.ErrInvalid)
	_, err = c.ListDead(ctx, client.Query{Topic: "x", DueFrom: now})
	check(t, "ListDead", err, client.ErrInvalid)
}

func TestTopics(t *testing.T) {
	ctx, c := t.Context(), served(t)
	_, err := c.Topic(ctx, "x")
	check(t, "Topic", err, client.ErrNoTopic)
	set, err := c.SetTopic(ctx, "x", client.Settings{Lease: client.Duration(48 * time.Minute), Retry: client.Retry{MaxAttempts: 3}}, 0)
	check(t, "SetTopic", err, nil)
	if set.Lease != client.Duration(48*time.Minute) || set.Retry.MaxAttempts != 3 || set.Concurrency != 64 || set.Revision != 1 || set.Delivery.Kind != "pull" {
		t.Errorf("got %+v", set)
	}
	// Settings that were read can be set again, with changes.
	set.Paused = true
	next, err := c.SetTopic(ctx, "x", set.Chosen(), set.Revision)
	check(t, "SetTopic", err, nil)
	if diff := cmp.Diff(set.Settings, next.Settings); diff != "" {
		t.Error(diff)
	}
	if next.ConcurrencySet {
		t.Error("what was left to the server is set")
	}
	if own, err := c.SetTopic(ctx, "z", client.Settings{Concurrency: 7}, 0); err != nil || !own.ConcurrencySet || own.Chosen().Concurrency != 7 {
		t.Errorf("got %+v, %v", own, err)
	}
	check(t, "DeleteTopic", c.DeleteTopic(ctx, "z"), nil)
	_, err = c.SetTopic(ctx, "x", client.Settings{}, set.Revision)
	check(t, "an old revision", err, client.ErrRevision)
	_, err = c.SetTopic(ctx, "x", client.Settings{Lease: 1}, client.AnyRevision)
	check(t, "out of range", err, client.ErrInvalid)
	check(t, "Resume", c.ResumeTopic(ctx, "x"), nil)
	check(t, "Pause", c.PauseTopic(ctx, "y"), nil)
	all, err := c.Topics(ctx)
	check(t, "Topics", err, nil)
	paused := map[string]bool{}
	for _, topic := range all {
		paused[topic.Name] = topic.Paused
	}
	if paused["x"] || !paused["y"] {
		t.Errorf("got %+v", all)
	}
	check(t, "DeleteTopic", c.DeleteTopic(ctx, "y"), nil)
	check(t, "DeleteTopic", c.DeleteTopic(ctx, "unknown"), client.ErrNoTopic)
}

func TestServer(t *testing.T) {
	ctx, c := t.Context(), served(t)
	_, err := c.Schedule(ctx, client.Request{Topic: "x", Delay: time.Hour})
	check(t, "Schedule", err, nil)
	f, err := c.Forecast(ctx, client.Outlook{Topic: "x", Window: 2 * time.Hour, Step: time.Minute})
	check(t, "Forecast", err, nil)
	if len(f.Counts) != 120 || f.Counts[58]+f.Counts[59]+f.Counts[60] != 1 || f.Step != client.Duration(time.Minute) || !f.Complete {
		t.Errorf("got %+v", f)
	}
	_, err = c.Forecast(ctx, client.Outlook{Window: 1})
	check(t, "Forecast", err, client.ErrInvalid)
	s, err := c.Stats(ctx)
	check(t, "Stats", err, nil)
	if s.Node != "n1" || s.Version != "v0" || s.Total.Pending != 1 || len(s.Topics) != 1 || s.Topics[0].Name != "x" || !s.State.Ready {
		t.Errorf("got %+v", s)
	}
	r, err := c.Ready(ctx)
	if check(t, "Ready", err, nil); !r.Ready || !r.Ledger.OK {
		t.Errorf("got %+v", r)
	}
	p, err := c.Purge(ctx, "x")
	if check(t, "Purge", err, nil); p.Cancelled != 1 || p.Delivering != 0 {
		t.Errorf("got %+v", p)
	}
	// A server that is not ready says so without an error.
	c = over(t, client.Options{}, func(*http.Request, string) (*http.Response, error) {
		return answer(503, `{"ready":false,"replay":{"over":false,"records":7,"elapsed":"1d2h"}}`, "Retry-After: 1"), nil
	})
	r, err = c.Ready(ctx)
	if check(t, "Ready", err, nil); r.Ready || r.Replay.Records != 7 || r.Replay.Elapsed != client.Duration(26*time.Hour) {
		t.Errorf("got %+v", r)
	}
}
