package kafka

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lapsehq/lapse/adapters/internal/brokertest"
	"github.com/lapsehq/lapse/tasks"
)

func TestConfigFaults(t *testing.T) {
	_, err := New(Config{Brokers: []string{"here:9092", "there", ":9092"}, Timeout: time.Second})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"brokers[1]", "brokers[2]", "timeout"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not in %q", part, err)
		}
	}
	if strings.Contains(err.Error(), "brokers[0]") {
		t.Errorf("%q", err)
	}
	if _, err := New(Config{Options: []kgo.Opt{kgo.TransactionalID("x")}}); err == nil || !strings.Contains(err.Error(), "options") {
		t.Errorf("options that do not fit: %v", err)
	}
}

func TestSettings(t *testing.T) {
	w, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	long := strings.Repeat("x", 249)
	brokertest.Settings(t, w, map[string][]string{
		`{"topic":"orders.expired_1-x"}`:            nil,
		`{"topic":"` + long + `"}`:                  nil,
		`{"topic":"a","key":"id"}`:                  nil,
		`{"topic":"a","key":"group"}`:               nil,
		`{"topic":"a","key":"none"}`:                nil,
		`{"topic":"a","key":"header:x-tenant_1.2"}`: nil,
		`{}`:                                  {"topic"},
		`{"topic":""}`:                        {"topic"},
		`{"topic":null}`:                      {"topic"},
		`{"topic":"."}`:                       {"topic"},
		`{"topic":".."}`:                      {"topic"},
		`{"topic":"orders expired"}`:          {"topic"},
		`{"topic":"orders:expired"}`:          {"topic"},
		`{"topic":"x` + long + `"}`:           {"topic"},
		`{"topic":"a","key":""}`:              {"key"},
		`{"topic":"a","key":"tenant"}`:        {"key"},
		`{"topic":"a","key":"header:"}`:       {"key"},
		`{"topic":"a","key":"header:Tenant"}`: {"key"},
		`{"topic":7,"key":"ID","acks":1}`:     {"topic", "key", "acks"},
	})
}

func newCluster(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

func connected(t *testing.T, cluster *kfake.Cluster) *Way {
	t.Helper()
	w, err := New(Config{Brokers: cluster.ListenAddrs(), Timeout: 2 * time.Second, Options: []kgo.Opt{kgo.MetadataMinAge(10 * time.Millisecond)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// produced are the first n records of a topic.
func produced(t *testing.T, cluster *kfake.Cluster, topic string, n int) (all []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	client := consumer(t, cluster, topic)
	for len(all) < n {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d records, want %d", len(all), n)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

func TestRecord(t *testing.T) {
	cluster := newCluster(t, kfake.SeedTopics(1, "expired"))
	w := connected(t, cluster)
	d := brokertest.Delivery("a")
	d.Attempt, d.Group, d.Payload = 3, "g", []byte("\x00 no {text\xff\r\n")
	d.Headers = map[string]string{"tenant": "eu: ☃", "lapse-id": "forged", "empty": ""}
	bare := brokertest.Delivery("b")
	bare.Payload = nil
	for key, keys := range map[string][2]string{
		"id": {"a", "b"}, "group": {"g", "<none>"}, "header:tenant": {"eu: ☃", "<none>"}, "header:empty": {"", "<none>"}, "none": {"<none>", "<none>"},
	} {
		p, err := w.Deliverer("orders", json.RawMessage(`{"topic":"expired","key":"`+key+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range []*tasks.Delivery{d, bare} {
			r := p.(*producer).record(d)
			got := "<none>"
			if r.Key != nil {
				got = string(r.Key)
			}
			if got != keys[i] {
				t.Errorf("key %s of %s is %q, want %q", key, d.ID, got, keys[i])
			}
		}
	}
	for i, err := range brokertest.Deliverer(t, w, `{"topic":"expired"}`)(d, bare) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	all := produced(t, cluster, "expired", 2)
	if m := all[1]; m.Value == nil || len(m.Value) != 0 {
		t.Errorf("an empty payload became %v", m.Value)
	}
	m := all[0]
	if string(m.Key) != "a" || !bytes.Equal(m.Value, d.Payload) {
		t.Errorf("%s: %q", m.Key, m.Value)
	}
	headers := map[string]string{
		"lapse-id": "a", "lapse-topic": "orders", "lapse-due": "2026-01-02T04:04:05.678Z", "lapse-attempt": "3", "lapse-group": "g",
		"tenant": "eu: ☃", "empty": "",
	}
	got := headersOf(m)
	for name, value := range headers {
		if v, has := got[name]; !has || v != value {
			t.Errorf("%s: %q, want %q", name, v, value)
		}
	}
	if len(m.Headers) != len(headers) {
		t.Errorf("headers %v", got)
	}
}

// Each task of a batch has an outcome of its own, and attempts ask for what they promise.
func TestRefusal(t *testing.T) {
	cluster := newCluster(t, kfake.SeedTopics(1, "expired"))
	w := connected(t, cluster)
	var acks []int16
	cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		acks = append(acks, r.(*kmsg.ProduceRequest).Acks)
		return nil, nil, false
	})
	large := brokertest.Delivery("large")
	large.Payload = make([]byte, 2<<20)
	errs := brokertest.Deliverer(t, w, `{"topic":"expired"}`)(brokertest.Delivery("a"), large, brokertest.Delivery("b"))
	if errs[0] != nil || !errors.Is(errs[1], kerr.MessageTooLarge) || errs[2] != nil {
		t.Errorf("one of three is too large: %v", errs)
	}
	if err := brokertest.Deliverer(t, w, `{"topic":"nowhere"}`)(brokertest.Delivery("a"))[0]; !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("there is no such topic: %v", err)
	}
	if len(produced(t, cluster, "expired", 2)) != 2 {
		t.Error("not two records")
	}
	if len(acks) == 0 || slices.ContainsFunc(acks, func(a int16) bool { return a != -1 }) {
		t.Errorf("asked for acknowledgements of %v, want all replicas", acks)
	}
	brokertest.Counts(t, w, map[string]int64{"stored": 2, "refused": 1, "no_topic": 1})

	// Once it is there, it is found.
	create := kmsg.NewPtrCreateTopicsRequest()
	nowhere := kmsg.NewCreateTopicsRequestTopic()
	nowhere.Topic, nowhere.NumPartitions, nowhere.ReplicationFactor = "nowhere", 1, 1
	create.Topics = append(create.Topics, nowhere)
	if _, err := create.RequestWith(t.Context(), w.client); err != nil {
		t.Fatal(err)
	}
	if err := brokertest.Deliverer(t, w, `{"topic":"nowhere"}`)(brokertest.Delivery("a"))[0]; err != nil {
		t.Errorf("now there is such a topic: %v", err)
	}
}

// A broker that has stored a record and does not answer costs an attempt, and no attempt waits
// longer than it may.
func TestSilence(t *testing.T) {
	cluster := newCluster(t, kfake.SeedTopics(1, "expired"))
	w := connected(t, cluster)
	deliver := brokertest.Deliverer(t, w, `{"topic":"expired"}`)
	if err := deliver(brokertest.Delivery("a"))[0]; err != nil {
		t.Fatal(err)
	}
	silent := make(chan struct{})
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.SleepControl(func() { <-silent })
		return nil, nil, false
	})
	if err := deliver(brokertest.Delivery("b"))[0]; outcomeOf(err) != timeout {
		t.Errorf("without an answer: %v", err)
	}
	close(silent)
	var err error
	for range 5 { // the client fails the records behind one that it has taken back
		if err = deliver(brokertest.Delivery("c"))[0]; err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if counts := w.Tally(); counts["stored"] != 2 || counts["timeout"] == 0 {
		t.Errorf("%v", counts)
	}
	w.Close()
	if err := deliver(brokertest.Delivery("d"))[0]; !errors.Is(err, kgo.ErrClientClosed) {
		t.Errorf("after Close: %v", err)
	}
}
