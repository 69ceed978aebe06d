package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

var (
	longName   = strings.Repeat("x", tasks.MaxIDBytes)
	manyHeader = func(n int) map[string]string {
		h := make(map[string]string)
		for i := range n {
			h["h"+strings.Repeat("x", i)] = ""
		}
		return h
	}
)

// Each field of a request at its limits, and what the error says.
func TestRequestLimits(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // in a bubble
	cases := []struct {
		name  string
		field string // named by the error; empty: accepted
		text  string // in it
		req   tasks.Request
	}{
		{"no topic", "topic", "1 to 128 characters", tasks.Request{Topic: ""}},
		{"topic with a blank", "topic", "A-Z a-z 0-9", tasks.Request{Topic: "a b"}},
		{"topic, longest", "", "", tasks.Request{Topic: longName}},
		{"topic too long", "topic", "128", tasks.Request{Topic: longName + "x"}},
		{"id, longest", "", "", tasks.Request{Topic: "x", ID: longName}},
		{"id too long", "id", "128", tasks.Request{Topic: "x", ID: longName + "x"}},
		{"id with all characters", "", "", tasks.Request{Topic: "x", ID: "0aZ._:@-"}},
		{"id begins with a dot", "id", "begin with", tasks.Request{Topic: "x", ID: ".a"}},
		{"id begins with a bang", "id", "begin with", tasks.Request{Topic: "x", ID: "!s"}},
		{"id with a slash", "id", "A-Z", tasks.Request{Topic: "x", ID: "a/b"}},
		{"id with an umlaut", "id", "A-Z", tasks.Request{Topic: "x", ID: "ä"}},
		{"group", "group", "A-Z", tasks.Request{Topic: "x", Group: "no group"}},
		{"group, longest", "", "", tasks.Request{Topic: "x", Group: longName}},
		{"negative delay", "delay", "0 to 3660 days", tasks.Request{Topic: "x", Delay: -1}},
		{"delay, longest", "", "", tasks.Request{Topic: "x", Delay: tasks.MaxAhead}},
		{"delay too long", "delay", "3660 days", tasks.Request{Topic: "x", Delay: tasks.MaxAhead + 1}},
		{"due in the past", "", "", tasks.Request{Topic: "x", Due: now.Add(-1000 * time.Hour)}},
		{"due before 1970", "", "", tasks.Request{Topic: "x", Due: time.Unix(-1e9, 0)}},
		{"due too far ahead", "due_at", "3660 days", tasks.Request{Topic: "x", Due: now.Add(tasks.MaxAhead + time.Hour)}},
		{"due and delay", "due_at", "beside delay", tasks.Request{Topic: "x", Due: now, Delay: 1}},
		{"max_lateness too short", "max_lateness", "1 ms to 3660 days", tasks.Request{Topic: "x", MaxLateness: time.Millisecond - 1}},
		{"max_lateness negative", "max_lateness", "1 ms", tasks.Request{Topic: "x", MaxLateness: -time.Hour}},
		{"max_lateness, shortest", "", "", tasks.Request{Topic: "x", MaxLateness: time.Millisecond}},
		{"max_lateness, longest", "", "", tasks.Request{Topic: "x", MaxLateness: tasks.MaxAhead}},
		{"max_lateness too long", "max_lateness", "3660", tasks.Request{Topic: "x", MaxLateness: tasks.MaxAhead + 1}},
		{"headers, most", "", "", tasks.Request{Topic: "x", Headers: manyHeader(tasks.MaxHeaders)}},
		{"too many headers", "headers", "at most 64", tasks.Request{Topic: "x", Headers: manyHeader(tasks.MaxHeaders + 1)}},
		{"header name in capitals", "headers", "a-z", tasks.Request{Topic: "x", Headers: map[string]string{"Tenant": "eu"}}},
		{"header name empty", "headers", "names", tasks.Request{Topic: "x", Headers: map[string]string{"": "eu"}}},
		{"header name too long", "headers", "128", tasks.Request{Topic: "x", Headers: map[string]string{longName + "x": "eu"}}},
		{"header value with a newline", "headers", "control", tasks.Request{Topic: "x", Headers: map[string]string{"a": "b\nc"}}},
		{"header value not UTF-8", "headers", "UTF-8", tasks.Request{Topic: "x", Headers: map[string]string{"a": "\xff"}}},
		{"payload, largest", "", "", tasks.Request{Topic: "x", Payload: make([]byte, 1000)}},
	}
	rig.Bubble(t, tasks.Config{MaxPayload: 1000}, func(t *testing.T, r *rig.Rig) {
		for _, c := range cases {
			_, err := r.Schedule(t.Context(), c.req)
			if c.req.ID != "" && err == nil {
				rig.Want(t, "Cancel", r.Cancel(t.Context(), c.req.ID), nil)
			}
			_, again := r.Replace(t.Context(), c.req)
			results, _ := r.ScheduleBatch(t.Context(), []tasks.Request{c.req})
			if c.field == "" {
				if err != nil || again != nil {
					t.Errorf("%s: %v, %v", c.name, err, again)
				}
				continue
			}
			for _, err := range []error{err, again, results[0].Err} {
				wantField(t, c.name, err, c.field, c.text)
			}
		}
	})
}

// wantField wants an error that names just this field, says this of it, and
// never repeats a value.
func wantField(t *testing.T, what string, err error, field, text string) {
	t.Helper()
	var invalid *tasks.InvalidError
	if !errors.As(err, &invalid) || !errors.Is(err, tasks.ErrInvalid) {
		t.Errorf("%s: %v; want an InvalidError of %s", what, err, field)
		return
	}
	if len(invalid.Fields) != 1 || invalid.Fields[0].Field != field || !strings.Contains(invalid.Fields[0].Problem, text) || !strings.Contains(err.Error(), field+" ") {
		t.Errorf("%s: %v; want %s ... %s", what, err, field, text)
	}
}

func TestTooLarge(t *testing.T) {
	rig.Bubble(t, tasks.Config{MaxPayload: 1000}, func(t *testing.T, r *rig.Rig) {
		big := make([]byte, 1001)
		r.Must(tasks.Request{ID: "t", Topic: "x", Delay: time.Hour})
		_, err := r.Schedule(t.Context(), tasks.Request{Topic: "x", Payload: big})
		rig.Want(t, "Schedule", err, tasks.ErrTooLarge)
		_, err = r.Reschedule(t.Context(), "t", tasks.Move{Payload: big})
		rig.Want(t, "Reschedule", err, tasks.ErrTooLarge)
		_, err = r.Schedule(t.Context(), tasks.Request{Topic: "x", Headers: map[string]string{"a": strings.Repeat("x", tasks.MaxHeaderBytes)}})
		rig.Want(t, "Schedule with headers", err, tasks.ErrTooLarge)
		if !strings.Contains(err.Error(), "8192") {
			t.Errorf("%v does not name the limit", err)
		}
	})
}

func TestArgumentLimits(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		d := r.One("t", "x")
		r.Must(tasks.Request{ID: "p", Topic: "x", Delay: time.Hour})
		reserve := func(topic string, limit int, wait, lease time.Duration) error {
			_, err := r.Reserve(ctx, topic, limit, wait, lease)
			return err
		}
		settle := func(v tasks.Verdict, receipts ...string) error { _, err := r.Settle(ctx, v, receipts); return err }
		requeue := func(q tasks.Requeue) error { _, err := r.Admin().Requeue(ctx, "x", q); return err }
		move := func(m tasks.Move) error { _, err := r.Reschedule(ctx, "p", m); return err }
		list := func(q tasks.Query) error { _, err := r.List(ctx, q); return err }
		set := func(s tasks.TopicSettings) error { _, err := r.SetTopic(ctx, "x", s, -1); return err }
		for _, c := range []struct {
			err         error
			field, text string
		}{
			{reserve("no topic", 1, 0, 0), "topic", "A-Z"},
			{reserve("x", 0, 0, 0), "max", "1 to 1000"},
			{reserve("x", 1001, 0, 0), "max", "1 to 1000"},
			{reserve("x", 1, -1, 0), "wait", "0 to 60 s"},
			{reserve("x", 1, tasks.MaxWait+1, 0), "wait", "60 s"},
			{reserve("x", 1, 0, tasks.MinLease-1), "lease", "1 s to 24 h"},
			{reserve("x", 1, 0, tasks.MaxLease+1), "lease", "24 h"},
			{settle(tasks.Verdict{Verb: tasks.Ack}), "receipts", "1 to 1000"},
			{settle(tasks.Verdict{Verb: tasks.Ack}, make([]string, 1001)...), "receipts", "1000"},
			{settle(tasks.Verdict{}, d.Receipt()), "verb", "Ack"},
			{settle(tasks.Verdict{Verb: tasks.Return + 1}, d.Receipt()), "verb", "Bury"},
			{settle(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(-time.Second)}, d.Receipt()), "delay", "3660 days"},
			{settle(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(tasks.MaxAhead + 1)}, d.Receipt()), "delay", "3660 days"},
			{settle(tasks.Verdict{Verb: tasks.Extend, Lease: tasks.MaxLease + 1}, d.Receipt()), "lease", "24 h"},
			{settle(tasks.Verdict{Verb: tasks.Extend, Lease: 1}, d.Receipt()), "lease", "1 s"},
			{move(tasks.Move{Delay: rig.Ptr(-time.Second)}), "delay", "3660 days"},
			{move(tasks.Move{Delay: rig.Ptr(time.Second), Due: time.Now()}), "due_at", "beside delay"},
			{move(tasks.Move{Due: time.Now().Add(tasks.MaxAhead + time.Hour)}), "due_at", "3660 days"},
			{list(tasks.Query{Limit: 1001}), "limit", "1 to 1000"},
			{list(tasks.Query{Limit: -1}), "limit", "1 to 1000"},
			{list(tasks.Query{Cursor: "?"}), "cursor", "next_cursor"},
			{list(tasks.Query{Topic: "no topic"}), "topic", "A-Z"},
			{list(tasks.Query{State: tasks.Finished + 1}), "state", "pending, retrying, held, ready"},
			{list(tasks.Query{State: tasks.Dead}), "topic", "state dead"},
			{list(tasks.Query{State: tasks.Finished}), "topic", "state finished"},
			{list(tasks.Query{ErrorLike: strings.Repeat("x", 1025)}), "error_like", "1024 bytes"},
			{list(tasks.Query{State: tasks.Finished, Topic: "x", DueFrom: time.Now()}), "due_from", "state finished"},
			{list(tasks.Query{State: tasks.Finished, Topic: "x", DiedTo: time.Now()}), "died_to", "state dead"},
			{set(tasks.TopicSettings{KeepFinished: -1}), "keep_finished", "0 to 30 days"},
			{set(tasks.TopicSettings{KeepFinished: 30*24*time.Hour + 1}), "keep_finished", "0 to 30 days"},
			{set(tasks.TopicSettings{Retry: tasks.Retry{MaxAttempts: 1000001}}), "retry.max_attempts", "1 to 1000"},
			{set(tasks.TopicSettings{Retry: tasks.Retry{MaxAttempts: -1}}), "retry.max_attempts", "1 to 1000"},
			{set(tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: 1}}), "retry.min_backoff", "1 ms to 24 h"},
			{set(tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: time.Hour, MaxBackoff: time.Minute}}), "retry.max_backoff", "min_backoff to 30 days"},
			{set(tasks.TopicSettings{Lease: 1}), "lease", "1 s to 24 h"},
			{set(tasks.TopicSettings{Concurrency: 100_001}), "concurrency", "1 to 100000"},
			{set(tasks.TopicSettings{Kind: "carrier-pigeon"}), "delivery.kind", "must be"},
			{set(tasks.TopicSettings{Kind: tasks.Handler}), "delivery.kind", "must be pull"},
			{func() error { _, err := r.SetTopic(ctx, "no topic", tasks.TopicSettings{}, -1); return err }(), "topic", "A-Z"},
			{func() error { _, err := r.Admin().DeadTasks(ctx, "no topic", 0, ""); return err }(), "topic", "A-Z"},
			{func() error { _, err := r.Admin().Requeue(ctx, "", tasks.Requeue{}); return err }(), "topic", "A-Z"},
			{requeue(tasks.Requeue{Delay: -1}), "delay", "0 to 3660 days"},
			{requeue(tasks.Requeue{Delay: tasks.MaxAhead + 1}), "delay", "0 to 3660 days"},
			{requeue(tasks.Requeue{Due: time.Now().Add(tasks.MaxAhead + time.Hour)}), "due_at", "3660 days"},
			{requeue(tasks.Requeue{Due: time.Now(), Delay: 1}), "due_at", "beside delay"},
			{func() error { _, err := r.Admin().DeleteDead(ctx, "", nil); return err }(), "topic", "A-Z"},
			{func() error { _, err := r.ScheduleBatch(ctx, make([]tasks.Request, tasks.MaxBatch+1)); return err }(), "tasks", "at most 10000"},
		} {
			wantField(t, c.field, c.err, c.field, c.text)
		}
		if task := r.MustGet("p"); task.Revision != 1 {
			t.Errorf("something has changed: %+v", task)
		}
		r.Ack(d)
	})
}

// All that is wrong is told at once.
func TestFaultsTogether(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		_, err := r.Schedule(t.Context(), tasks.Request{ID: "a b", Group: "c d", Delay: -1, MaxLateness: 1})
		var invalid *tasks.InvalidError
		if !errors.As(err, &invalid) || len(invalid.Fields) != 5 {
			t.Errorf("%v; want five fields", err)
		}
		_, err = tasks.Open(context.Background(), nil, tasks.Config{
			Node: strings.Repeat("x", 200), MaxPending: -1, MaxInFlight: 1 << 40, MaxPayload: 1 << 40, AnswerWithin: 1,
			SweepEvery: time.Hour, Grace: time.Hour, Topics: map[string]tasks.TopicSettings{"a b": {Lease: 1}},
		})
		for _, field := range []string{"node", "max_pending", "max_in_flight", "max_payload", "answer_within", "sweep.every", "shutdown.grace", "topics:", "topics.a b"} {
			if err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("Open = %v; want it to name %s", err, field)
			}
		}
	})
}

// An id that stands twice in one batch is an error of the second.
func TestBatchWithTwins(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		results, err := r.ScheduleBatch(t.Context(), []tasks.Request{{ID: "a", Topic: "x"}, {ID: "b", Topic: ""}, {ID: "a", Topic: "x"}, {Topic: "x"}, {Topic: "x"}})
		rig.Want(t, "ScheduleBatch", err, nil)
		rig.Want(t, "the first", results[0].Err, nil)
		wantField(t, "the bad one", results[1].Err, "topic", "A-Z")
		wantField(t, "the twin", results[2].Err, "id", "twice")
		if results[3].Err != nil || results[4].Err != nil || results[3].ID == results[4].ID || len(results[3].ID) != 36 {
			t.Errorf("made ids: %+v, %+v", results[3], results[4])
		}
		results, err = r.ScheduleBatch(t.Context(), nil)
		if err != nil || len(results) != 0 {
			t.Errorf("an empty batch: %v, %v", results, err)
		}
	})
}
