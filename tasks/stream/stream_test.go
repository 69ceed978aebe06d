package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig/redisrig"
	"github.com/lapsehq/lapse/tasks/stream"
)

// The client looks for a server that was away once a second, also when it is closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// newWay makes the way of a client.
func newWay(client redis.UniversalClient) *stream.Way { return stream.New(client, stream.Config{}) }

func setTopic(t *testing.T, s *tasks.Scheduler, topic string, set tasks.TopicSettings, object string) {
	t.Helper()
	set.Kind, set.Delivery = stream.Kind, json.RawMessage(object)
	if _, err := s.SetTopic(t.Context(), topic, set, -1); err != nil {
		t.Fatal(err)
	}
}

// settled waits until so many tasks of a topic are delivered.
func settled(t *testing.T, s *tasks.Scheduler, topic string, n int64) tasks.Counts {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		x, err := s.Topic(topic)
		if err != nil {
			t.Fatal(err)
		}
		if x.Counts.Delivered >= n {
			return x.Counts
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d of %d delivered: %+v", x.Counts.Delivered, n, x.Counts)
		}
	}
}

func entries(t *testing.T, c redis.UniversalClient, name string) []redis.XMessage {
	t.Helper()
	all, err := c.XRange(t.Context(), name, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// An entry has the fields that are documented, in their order, byte for byte.
func TestEntry(t *testing.T) {
	server := redistest.Start(t)
	s, way := redisrig.Open(t, server.URL(), newWay)
	setTopic(t, s, "orders", tasks.TopicSettings{}, `{}`)
	setTopic(t, s, "named", tasks.TopicSettings{}, `{"stream":"of:my:own","max_len":0}`)
	due := time.Now().Add(20 * time.Millisecond).Truncate(time.Millisecond)
	payload := "\x00{\"order\": 42}\r\n\xff"
	redisrig.Schedule(t, s,
		tasks.Request{ID: "o-42", Topic: "orders", Due: due, Payload: []byte(payload), Group: "g", Headers: map[string]string{"tenant": "eu"}},
		tasks.Request{ID: "bare", Topic: "named"})
	settled(t, s, "orders", 1)
	settled(t, s, "named", 1)
	reply := server.Do("xrange", "lapse:stream:orders", "-", "+").([]any)
	got := fmt.Sprint(reply[0].([]any)[1])
	want := fmt.Sprint([]any{"id", "o-42", "topic", "orders", "due", fmt.Sprint(due.UnixMilli()), "attempt", "1", "group", "g", "payload", payload, "h:tenant", "eu"})
	if len(reply) != 1 || got != want {
		t.Errorf("%d entries, the first one is %q, want %q", len(reply), got, want)
	}
	reply = server.Do("xrange", "of:my:own", "-", "+").([]any)
	if fields := reply[0].([]any)[1].([]any); len(reply) != 1 || len(fields) != 10 || fields[8] != "payload" || fields[9] != "" {
		t.Errorf("%q", reply)
	}
	if c := way.Tally(); c["added"] != 2 || c["refused"]+c["unreachable"] != 0 {
		t.Errorf("%v", c)
	}
}

// max_len bounds a stream, about; 0 keeps everything.
func TestTrimming(t *testing.T) {
	server := redistest.Start(t)
	s, _ := redisrig.Open(t, server.URL(), newWay)
	setTopic(t, s, "short", tasks.TopicSettings{}, `{"max_len":100}`)
	setTopic(t, s, "long", tasks.TopicSettings{}, `{"max_len":0}`)
	var requests []tasks.Request
	for range 3000 {
		requests = append(requests, tasks.Request{Topic: "short"}, tasks.Request{Topic: "long"})
	}
	redisrig.Schedule(t, s, requests...)
	settled(t, s, "short", 3000)
	settled(t, s, "long", 3000)
	if n := server.Do("xlen", "lapse:stream:short").(int64); n < 100 || n > 300 {
		t.Errorf("%d entries are kept, about 100 should be", n)
	}
	if n := server.Do("xlen", "lapse:stream:long").(int64); n != 3000 {
		t.Errorf("%d entries are kept, 3000 should be", n)
	}
}

// Redis is killed and started again while tasks are added to it: each is there at least once. A
// task that Redis refuses does not hold up the others.
func TestServerGoesAwayAndReturns(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "appendonly yes", "appendfsync always")
	s, way := redisrig.Open(t, server.URL(), newWay)
	retry := tasks.Retry{MaxAttempts: 1000, MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond}
	setTopic(t, s, "orders", tasks.TopicSettings{Retry: retry}, `{"max_len":0}`)
	setTopic(t, s, "wrong", tasks.TopicSettings{Retry: tasks.Retry{MaxAttempts: 2, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}}, `{"stream":"text"}`)
	server.Do("set", "text", "no stream")
	redisrig.Schedule(t, s, tasks.Request{ID: "refused", Topic: "wrong"})
	const n = 3000
	requests := make([]tasks.Request, n)
	for i := range requests {
		requests[i] = tasks.Request{ID: fmt.Sprint("t", i), Topic: "orders", Delay: time.Duration(i/10) * time.Millisecond}
	}
	redisrig.Schedule(t, s, requests...)
	settled(t, s, "orders", n/4)
	server.Kill()
	for way.Tally()["unreachable"] == 0 {
		<-time.After(time.Millisecond)
	}
	server.Start()
	c := settled(t, s, "orders", n)
	seen := map[string]int{}
	client := server.Client()
	defer client.Close()
	for _, e := range entries(t, client, "lapse:stream:orders") {
		seen[e.Values["id"].(string)]++
	}
	if len(seen) != n {
		t.Errorf("%d of %d are in the stream; %+v", len(seen), n, c)
	}
	x, err := s.Get(t.Context(), "refused")
	// The server may refuse others while it starts.
	if err != nil || x.State != tasks.Dead || !strings.Contains(x.LastError, "WRONGTYPE") || way.Tally()["refused"] < 2 {
		t.Errorf("%+v, %v, %v", x, err, way.Tally())
	}
}

// A Redis that hangs costs an attempt no more than a second or two, whatever the size of the batch.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, way := redisrig.Open(t, server.URL(), newWay)
	setTopic(t, s, "orders", tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: 100 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}}, `{"max_len":0}`)
	big := make([]byte, 64<<10)
	requests := make([]tasks.Request, 64)
	for i := range requests {
		requests[i] = tasks.Request{ID: fmt.Sprint("t", i), Topic: "orders", Payload: big}
	}
	server.Pause()
	redisrig.Schedule(t, s, requests...)
	for way.Tally()["unreachable"] < 64 {
		<-time.After(10 * time.Millisecond)
	}
	server.Resume()
	settled(t, s, "orders", 64)
}

// Streams of any name go to their masters in a cluster, also while a slot moves.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	s, way := redisrig.Open(t, cluster.URL(), newWay)
	retry := tasks.Retry{MaxAttempts: 1000, MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond}
	var requests []tasks.Request
	for i := range 12 {
		topic := fmt.Sprint("topic", i)
		setTopic(t, s, topic, tasks.TopicSettings{Retry: retry}, `{}`)
		for k := range 100 {
			requests = append(requests, tasks.Request{ID: fmt.Sprint(topic, "-", k), Topic: topic, Delay: time.Duration(k) * time.Millisecond})
		}
	}
	redisrig.Schedule(t, s, requests...)
	move := cluster.BeginMove("lapse:stream:topic0")
	move.Key("lapse:stream:topic0") // if it is there already
	move.End()
	masters := map[string]bool{}
	for i := range 12 {
		settled(t, s, fmt.Sprint("topic", i), 100)
		masters[cluster.Master(fmt.Sprint("lapse:stream:topic", i)).Addr] = true
	}
	if len(masters) < 2 {
		t.Error("all streams are on one master, so nothing was tested")
	}
	if c := way.Tally(); c["added"] < 1200 {
		t.Errorf("%v", c)
	}
}

// Settings are checked strictly, with all faults at once, and faults name fields.
func TestSettingsAreChecked(t *testing.T) {
	way := stream.New(nil, stream.Config{Prefix: "mine:"})
	for object, faults := range map[string][]string{
		`{}`: nil,
		`{"stream":"x{y}","max_len":1000000000000}`:       nil,
		`{"stream":"mine:stream:other"}`:                  nil,
		`{"stream":"lapse:topics"}`:                       nil, // no prefix of this ledger's
		`{"stream":"mine:topics"}`:                        {"stream"},
		`{"stream":""}`:                                   {"stream"},
		`{"stream":"a b"}`:                                {"stream"},
		`{"stream":"a\u0000"}`:                            {"stream"},
		`{"stream":null}`:                                 {"stream"},
		`{"stream":"` + strings.Repeat("x", 513) + `"}`:   {"stream"},
		`{"max_len":-1}`:                                  {"max_len"},
		`{"max_len":1.5}`:                                 {"max_len"},
		`{"max_len":"5"}`:                                 {"max_len"},
		`{"max_len":1000000000001}`:                       {"max_len"},
		`{"stream":7,"max_len":true,"maxlen":1,"a":{}}`:   {"a", "max_len", "maxlen", "stream"},
		`{"Stream":"x"}`:                                  {"Stream"},
		`{"<script>":"x","max_len":99999999999999999999}`: {"(a field)", "max_len"},
	} {
		d, err := way.Deliverer("orders", json.RawMessage(object))
		if object == "{}" && d.(tasks.Receiver).Receiver() != "mine:stream:orders" {
			t.Errorf("it is called %s", d.(tasks.Receiver).Receiver())
		}
		var invalid *tasks.InvalidError
		if errors.As(err, &invalid) != (faults != nil) || err == nil != (faults == nil) {
			t.Errorf("%.40s: %v", object, err)
			continue
		}
		named := map[string]bool{}
		if invalid != nil {
			for _, f := range invalid.Fields {
				named[f.Field] = true
			}
		}
		if len(named) != len(faults) {
			t.Errorf("%.40s: %v, want %v", object, err, faults)
		}
		for _, f := range faults {
			if !named[f] {
				t.Errorf("%.40s: %v, want %v", object, err, faults)
			}
		}
	}
}
