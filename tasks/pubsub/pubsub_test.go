package pubsub_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig/redisrig"
	"github.com/lapsehq/lapse/tasks/pubsub"
	"github.com/redis/go-redis/v9"
)

var quickly = tasks.Retry{MaxAttempts: 1000, MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond}

// newWay makes the way of a client.
func newWay(client redis.UniversalClient) *pubsub.Way { return pubsub.New(client, pubsub.Config{}) }

func setTopic(t *testing.T, s *tasks.Scheduler, topic, object string) {
	t.Helper()
	set := tasks.TopicSettings{Kind: pubsub.Kind, Delivery: json.RawMessage(object), Retry: quickly}
	if _, err := s.SetTopic(t.Context(), topic, set, -1); err != nil {
		t.Fatal(err)
	}
}

// until polls, for as long as a test may take.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("waiting in vain until", what)
		}
	}
}

// subscribe returns the messages of channels, as "channel: message".
func subscribe(t *testing.T, addr string, channels ...string) func() string {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	sub := client.Subscribe(t.Context(), channels...)
	t.Cleanup(func() { _, _ = sub.Close(), client.Close() })
	for range channels {
		if _, err := sub.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		m, err := sub.ReceiveMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return m.Channel + ": " + m.Payload
	}
}

// What is published, and where.
func TestMessages(t *testing.T) {
	server := redistest.Start(t)
	s, way := redisrig.Open(t, server.URL(), newWay)
	due := time.Now().Add(10 * time.Millisecond).Truncate(time.Millisecond)
	payload := "\x00{\"order\": 42}\r\n\xff"
	for i, c := range []struct {
		object, channel, message string
		request                  tasks.Request
	}{
		{`{}`, "lapse:channel:t0", payload, tasks.Request{Payload: []byte(payload)}},
		{`{"channel":"a{b}"}`, "a{b}", "", tasks.Request{}},
		{`{"compat":"keyevent"}`, "__keyevent@0__:expired", "id2", tasks.Request{Payload: []byte(payload)}},
		{`{"compat":"keyevent","db":7,"min_receivers":1}`, "__keyevent@7__:expired", "session:ä 1", tasks.Request{Headers: map[string]string{"key": "session:ä 1"}}},
		{`{"compat":"keyevent"}`, "__keyevent@0__:expired", "id4", tasks.Request{Headers: map[string]string{"key": ""}}},
		{`{"format":"envelope"}`, "lapse:channel:t5",
			fmt.Sprintf(`{"id":"id5","topic":"t5","due":%d,"attempt":1,"group":"g","headers":{"a":"b"},"payload":{"x":1}}`, due.UnixMilli()),
			tasks.Request{Payload: []byte(`{"x": 1}`), Group: "g", Headers: map[string]string{"a": "b"}}},
		{`{"format":"envelope"}`, "lapse:channel:t6",
			fmt.Sprintf(`{"id":"id6","topic":"t6","due":%d,"attempt":1,"payload_base64":"AP8="}`, due.UnixMilli()),
			tasks.Request{Payload: []byte{0, 255}}},
	} {
		topic := fmt.Sprint("t", i)
		setTopic(t, s, topic, c.object)
		next := subscribe(t, server.Addr, c.channel)
		c.request.Topic, c.request.ID, c.request.Due = topic, fmt.Sprint("id", i), due
		redisrig.Schedule(t, s, c.request)
		if got := next(); got != c.channel+": "+c.message {
			t.Errorf("%s: %q, want %q", c.object, got, c.message)
		}
	}
	until(t, "all are counted", func() bool { return way.Tally()["published"] == 7 })
}

// Without receivers a message is lost, as on any channel. With min_receivers the task is kept until
// there are enough.
func TestReceivers(t *testing.T) {
	server := redistest.Start(t)
	s, way := redisrig.Open(t, server.URL(), newWay)
	setTopic(t, s, "lost", `{"channel":"news"}`)
	redisrig.Schedule(t, s, tasks.Request{ID: "lost", Topic: "lost"})
	until(t, "it is published without a subscriber", func() bool { return way.Tally()["no_receivers"] == 1 })
	setTopic(t, s, "kept", `{"channel":"news","min_receivers":2}`)
	redisrig.Schedule(t, s, tasks.Request{ID: "kept", Topic: "kept", Payload: []byte("1")})
	until(t, "it was tried in vain", func() bool { return way.Tally()["too_few_receivers"] >= 2 })
	one := subscribe(t, server.Addr, "news")
	tried := way.Tally()["too_few_receivers"]
	until(t, "one is too few", func() bool { return way.Tally()["too_few_receivers"] >= tried+2 })
	if x, err := s.Get(t.Context(), "kept"); err == nil && !strings.Contains(x.LastError, "1 of 2") {
		t.Errorf("%q, %v", x.LastError, err)
	}
	two := subscribe(t, server.Addr, "news")
	if a, b := one(), two(); a != b || a != "news: 1" {
		t.Errorf("%q, %q", a, b)
	}
	until(t, "it is finished", func() bool { _, err := s.Get(t.Context(), "kept"); return errors.Is(err, tasks.ErrNotFound) })
	if c := way.Tally(); c["published"] != 1 || c["no_receivers"] != 1 || len(c) != 6 {
		t.Errorf("%v", c)
	}
}

// While Redis is away tasks wait. A subscriber that is back gets each of them.
func TestServerGoesAwayAndReturns(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, way := redisrig.Open(t, server.URL(), newWay)
	setTopic(t, s, "orders", `{"compat":"keyevent","min_receivers":1}`)
	server.Kill()
	const n = 500
	requests := make([]tasks.Request, n)
	for i := range requests {
		requests[i] = tasks.Request{ID: fmt.Sprint("t", i), Topic: "orders"}
	}
	redisrig.Schedule(t, s, requests...)
	until(t, "all have failed", func() bool { return way.Tally()["unreachable"] >= n })
	server.Start()
	next, seen := subscribe(t, server.Addr, "__keyevent@0__:expired"), map[string]bool{}
	for len(seen) < n {
		seen[next()] = true
	}
	until(t, "all are finished", func() bool { x, err := s.Topic("orders"); return err == nil && x.Counts.Delivered == n })
}

// A message reaches subscribers of every server of a cluster.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	s, _ := redisrig.Open(t, cluster.URL(), newWay)
	setTopic(t, s, "orders", `{"channel":"news"}`)
	_, err := s.SetTopic(t.Context(), "counted", tasks.TopicSettings{Kind: pubsub.Kind, Delivery: json.RawMessage(`{"min_receivers":1}`)}, -1)
	if !errors.Is(err, tasks.ErrInvalid) || !strings.Contains(err.Error(), "delivery.min_receivers") {
		t.Errorf("min_receivers on a cluster: %v", err)
	}
	var all []func() string
	for _, m := range cluster.Masters {
		all = append(all, subscribe(t, m.Addr, "news"))
	}
	for i := range 20 {
		redisrig.Schedule(t, s, tasks.Request{Topic: "orders", Payload: fmt.Appendf(nil, "%d", i)})
		for k, next := range all {
			if got := next(); got != fmt.Sprint("news: ", i) {
				t.Errorf("subscriber %d: %q, want %d", k, got, i)
			}
		}
	}
}

// Settings are checked strictly, with all faults at once, and faults name fields.
func TestSettingsAreChecked(t *testing.T) {
	way := pubsub.New(nil, pubsub.Config{})
	for object, faults := range map[string]string{
		`{}`:                                        "",
		`{"compat":"keyevent"}`:                     "",
		`{"channel":"news","format":"payload"}`:     "",
		`{"channel":"lapse:channel:x"}`:             "",
		`{"channel":"lapse:control"}`:               "channel",
		`{"channel":"__sentinel__:hello"}`:          "channel",
		`{"channel":"__redis__:invalidate"}`:        "channel",
		`{"channel":"__keyevent@1__:del"}`:          "",
		`{"channel":""}`:                            "channel",
		`{"format":"xml"}`:                          "format",
		`{"compat":"keyspace"}`:                     "compat",
		`{"compat":""}`:                             "compat",
		`{"db":0}`:                                  "db",
		`{"compat":"keyevent","db":-1}`:             "db",
		`{"compat":"keyevent","channel":"x"}`:       "channel",
		`{"min_receivers":1001}`:                    "min_receivers",
		`{"min_receivers":-1,"format":1,"max":"3"}`: "min_receivers format max",
		`{"compat":"keyevent","format":"payload","channel":"x","db":"1"}`: "format channel db",
	} {
		_, err := way.Deliverer("orders", json.RawMessage(object))
		var invalid *tasks.InvalidError
		if (err == nil) != (faults == "") || err != nil && !errors.As(err, &invalid) {
			t.Errorf("%s: %v", object, err)
			continue
		}
		for _, field := range strings.Fields(faults) {
			if !strings.Contains(err.Error(), field+" must") && !strings.Contains(err.Error(), field+" is not known") {
				t.Errorf("%s: %v does not name %s", object, err, field)
			}
		}
		if invalid != nil && len(invalid.Fields) != len(strings.Fields(faults)) {
			t.Errorf("%s: %v, want %s", object, err, faults)
		}
	}
}
