package tasks

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

var (
	longName   = strings.Repeat("x", MaxIDBytes)
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
		req   Request
	}{
		{"no topic", "topic", "1 to 128 characters", Request{Topic: ""}},
		{"topic with a blank", "topic", "A-Z a-z 0-9", Request{Topic: "a b"}},
		{"topic, longest", "", "", Request{Topic: longName}},
		{"topic too long", "topic", "128", Request{Topic: longName + "x"}},
		{"id, longest", "", "", Request{Topic: "x", ID: longName}},
		{"id too long", "id", "128", Request{Topic: "x", ID: longName + "x"}},
		{"id with all characters", "", "", Request{Topic: "x", ID: "0aZ._:@-"}},
		{"id begins with a dot", "id", "begin with", Request{Topic: "x", ID: ".a"}},
		{"id begins with a bang", "id", "begin with", Request{Topic: "x", ID: "!s"}},
		{"id with a slash", "id", "A-Z", Request{Topic: "x", ID: "a/b"}},
		{"id with an umlaut", "id", "A-Z", Request{Topic: "x", ID: "ä"}},
		{"group", "group", "A-Z", Request{Topic: "x", Group: "no group"}},
		{"group, longest", "", "", Request{Topic: "x", Group: longName}},
		{"negative delay", "delay", "0 to 3660 days", Request{Topic: "x", Delay: -1}},
		{"delay, longest", "", "", Request{Topic: "x", Delay: MaxAhead}},
		{"delay too long", "delay", "3660 days", Request{Topic: "x", Delay: MaxAhead + 1}},
		{"due in the past", "", "", Request{Topic: "x", Due: now.Add(-1000 * time.Hour)}},
		{"due before 1970", "", "", Request{Topic: "x", Due: time.Unix(-1e9, 0)}},
		{"due too far ahead", "due_at", "3660 days", Request{Topic: "x", Due: now.Add(MaxAhead + time.Hour)}},
		{"due and delay", "due_at", "beside delay", Request{Topic: "x", Due: now, Delay: 1}},
		{"max_lateness too short", "max_lateness", "1 ms to 3660 days", Request{Topic: "x", MaxLateness: time.Millisecond - 1}},
		{"max_lateness negative", "max_lateness", "1 ms", Request{Topic: "x", MaxLateness: -time.Hour}},
		{"max_lateness, shortest", "", "", Request{Topic: "x", MaxLateness: time.Millisecond}},
		{"max_lateness, longest", "", "", Request{Topic: "x", MaxLateness: MaxAhead}},
		{"max_lateness too long", "max_lateness", "3660", Request{Topic: "x", MaxLateness: MaxAhead + 1}},
		{"headers, most", "", "", Request{Topic: "x", Headers: manyHeader(MaxHeaders)}},
		{"too many headers", "headers", "at most 64", Request{Topic: "x", Headers: manyHeader(MaxHeaders + 1)}},
		{"header name in capitals", "headers", "a-z", Request{Topic: "x", Headers: map[string]string{"Tenant": "eu"}}},
		{"header name empty", "headers", "names", Request{Topic: "x", Headers: map[string]string{"": "eu"}}},
		{"header name too long", "headers", "128", Request{Topic: "x", Headers: map[string]string{longName + "x": "eu"}}},
		{"header value with a newline", "headers", "control", Request{Topic: "x", Headers: map[string]string{"a": "b\nc"}}},
		{"header value not UTF-8", "headers", "UTF-8", Request{Topic: "x", Headers: map[string]string{"a": "\xff"}}},
		{"payload, largest", "", "", Request{Topic: "x", Payload: make([]byte, 1000)}},
	}
	bubble(t, Config{MaxPayload: 1000}, func(t *testing.T, r *rig) {
		for _, c := range cases {
			_, err := r.Schedule(t.Context(), c.req)
			if c.req.ID != "" && err == nil {
				want(t, "Cancel", r.Cancel(t.Context(), c.req.ID), nil)
			}
			_, again := r.Replace(t.Context(), c.req)
			results, _ := r.ScheduleBatch(t.Context(), []Request{c.req})
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
	var invalid *InvalidError
	if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) {
		t.Errorf("%s: %v; want an InvalidError of %s", what, err, field)
		return
	}
	if len(invalid.Fields) != 1 || invalid.Fields[0].Field != field || !strings.Contains(invalid.Fields[0].Problem, text) || !strings.Contains(err.Error(), field+" ") {
		t.Errorf("%s: %v; want %s ... %s", what, err, field, text)
	}
}

func TestTooLarge(t *testing.T) {
	bubble(t, Config{MaxPayload: 1000}, func(t *testing.T, r *rig) {
		big := make([]byte, 1001)
		r.must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		_, err := r.Schedule(t.Context(), Request{Topic: "x", Payload: big})
		want(t, "Schedule", err, ErrTooLarge)
		_, err = r.Reschedule(t.Context(), "t", Move{Payload: big})
		want(t, "Reschedule", err, ErrTooLarge)
		_, err = r.Schedule(t.Context(), Request{Topic: "x", Headers: map[string]string{"a": strings.Repeat("x", MaxHeaderBytes)}})
		want(t, "Schedule with headers", err, ErrTooLarge)
		if !strings.Contains(err.Error(), "8192") {
			t.Errorf("%v does not name the limit", err)
		}
	})
}

func TestArgumentLimits(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		ctx := t.Context()
		d := r.one("t", "x")
		r.must(Request{ID: "p", Topic: "x", Delay: time.Hour})
		reserve := func(topic string, limit int, wait, lease time.Duration) error {
			_, err := r.Reserve(ctx, topic, limit, wait, lease)
			return err
		}
		settle := func(v Verdict, receipts ...string) error { _, err := r.Settle(ctx, v, receipts); return err }
		requeue := func(q Requeue) error { _, err := r.Requeue(ctx, "x", q); return err }
		move := func(m Move) error { _, err := r.Reschedule(ctx, "p", m); return err }
		list := func(q Query) error { _, err := r.List(ctx, q); return err }
		set := func(s TopicSettings) error { _, err := r.SetTopic(ctx, "x", s, -1); return err }
		for _, c := range []struct {
			err         error
			field, text string
		}{
			{reserve("no topic", 1, 0, 0), "topic", "A-Z"},
			{reserve("x", 0, 0, 0), "max", "1 to 1000"},
			{reserve("x", 1001, 0, 0), "max", "1 to 1000"},
			{reserve("x", 1, -1, 0), "wait", "0 to 60 s"},
			{reserve("x", 1, MaxWait+1, 0), "wait", "60 s"},
			{reserve("x", 1, 0, MinLease-1), "lease", "1 s to 24 h"},
			{reserve("x", 1, 0, MaxLease+1), "lease", "24 h"},
			{settle(Verdict{Verb: Ack}), "receipts", "1 to 1000"},
			{settle(Verdict{Verb: Ack}, make([]string, 1001)...), "receipts", "1000"},
			{settle(Verdict{}, d.Receipt()), "verb", "Ack"},
			{settle(Verdict{Verb: Return + 1}, d.Receipt()), "verb", "Bury"},
			{settle(Verdict{Verb: Release, Delay: ptr(-time.Second)}, d.Receipt()), "delay", "3660 days"},
			{settle(Verdict{Verb: Release, Delay: ptr(MaxAhead + 1)}, d.Receipt()), "delay", "3660 days"},
			{settle(Verdict{Verb: Extend, Lease: MaxLease + 1}, d.Receipt()), "lease", "24 h"},
			{settle(Verdict{Verb: Extend, Lease: 1}, d.Receipt()), "lease", "1 s"},
			{move(Move{Delay: ptr(-time.Second)}), "delay", "3660 days"},
			{move(Move{Delay: ptr(time.Second), Due: time.Now()}), "due_at", "beside delay"},
			{move(Move{Due: time.Now().Add(MaxAhead + time.Hour)}), "due_at", "3660 days"},
			{list(Query{Limit: 1001}), "limit", "1 to 1000"},
			{list(Query{Limit: -1}), "limit", "1 to 1000"},
			{list(Query{Cursor: "?"}), "cursor", "next_cursor"},
			{list(Query{Topic: "no topic"}), "topic", "A-Z"},
			{list(Query{State: Dead + 1}), "state", "pending, ready"},
			{list(Query{State: Dead}), "topic", "state dead"},
			{set(TopicSettings{Retry: Retry{MaxAttempts: 1000001}}), "retry.max_attempts", "1 to 1000"},
			{set(TopicSettings{Retry: Retry{MaxAttempts: -1}}), "retry.max_attempts", "1 to 1000"},
			{set(TopicSettings{Retry: Retry{MinBackoff: 1}}), "retry.min_backoff", "1 ms to 24 h"},
			{set(TopicSettings{Retry: Retry{MinBackoff: time.Hour, MaxBackoff: time.Minute}}), "retry.max_backoff", "min_backoff to 30 days"},
			{set(TopicSettings{Lease: 1}), "lease", "1 s to 24 h"},
			{set(TopicSettings{Concurrency: 100_001}), "concurrency", "1 to 100000"},
			{set(TopicSettings{Kind: "carrier-pigeon"}), "delivery.kind", "must be"},
			{set(TopicSettings{Kind: Handler}), "delivery.kind", "must be pull"},
			{func() error { _, err := r.SetTopic(ctx, "no topic", TopicSettings{}, -1); return err }(), "topic", "A-Z"},
			{func() error { _, err := r.DeadTasks(ctx, "no topic", 0, ""); return err }(), "topic", "A-Z"},
			{func() error { _, err := r.Requeue(ctx, "", Requeue{}); return err }(), "topic", "A-Z"},
			{requeue(Requeue{Delay: -1}), "delay", "0 to 3660 days"},
			{requeue(Requeue{Delay: MaxAhead + 1}), "delay", "0 to 3660 days"},
			{requeue(Requeue{Due: time.Now().Add(MaxAhead + time.Hour)}), "due_at", "3660 days"},
			{requeue(Requeue{Due: time.Now(), Delay: 1}), "due_at", "beside delay"},
			{func() error { _, err := r.DeleteDead(ctx, "", nil); return err }(), "topic", "A-Z"},
			{func() error { _, err := r.ScheduleBatch(ctx, make([]Request, MaxBatch+1)); return err }(), "tasks", "at most 10000"},
		} {
			wantField(t, c.field, c.err, c.field, c.text)
		}
		if task := r.get("p"); task.Revision != 1 {
			t.Errorf("something has changed: %+v", task)
		}
		r.ack(d)
	})
}

// All that is wrong is told at once.
func TestFaultsTogether(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		_, err := r.Schedule(t.Context(), Request{ID: "a b", Group: "c d", Delay: -1, MaxLateness: 1})
		var invalid *InvalidError
		if !errors.As(err, &invalid) || len(invalid.Fields) != 5 {
			t.Errorf("%v; want five fields", err)
		}
		_, err = Open(context.Background(), nil, Config{
			Node: strings.Repeat("x", 200), MaxPending: -1, MaxInFlight: 1 << 40, MaxPayload: 1 << 40, AnswerWithin: 1,
			SweepEvery: time.Hour, Grace: time.Hour, Topics: map[string]TopicSettings{"a b": {Lease: 1}},
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
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		results, err := r.ScheduleBatch(t.Context(), []Request{{ID: "a", Topic: "x"}, {ID: "b", Topic: ""}, {ID: "a", Topic: "x"}, {Topic: "x"}, {Topic: "x"}})
		want(t, "ScheduleBatch", err, nil)
		want(t, "the first", results[0].Err, nil)
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
