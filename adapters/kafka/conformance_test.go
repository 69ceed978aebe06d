package kafka

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lapsehq/lapse/tasks/delivertest"
)

func TestConformance(t *testing.T) {
	delivertest.Run(t, func(t *testing.T, r *delivertest.Receiver) delivertest.Rig {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "expired", "probe"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		proxy := delivertest.NewProxy(t, cluster.ListenAddrs()[0])
		way, err := New(Config{
			Brokers: []string{proxy.Addr}, Timeout: 2 * time.Second,
			Options: []kgo.Opt{
				// The broker tells its own address.
				kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, network, proxy.Addr)
				}),
				kgo.MetadataMinAge(10 * time.Millisecond),
				kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(way.Close)
		rig := &rig{
			Stored: delivertest.Stored{Way: way, Delivery: `{"topic":"expired"}`},
			Proxy:  proxy, t: t, way: way, receiver: r,
		}
		cluster.ControlKey(int16(kmsg.Produce), rig.control(cluster))
		rig.read(t, cluster)
		return rig
	})
}

// A rig delivers through a proxy, and reads past it what the topic has.
type rig struct {
	delivertest.Stored
	*delivertest.Proxy
	t        *testing.T
	way      *Way
	receiver *delivertest.Receiver
	flaky    atomic.Bool
}

// Break returns, once the fault is over, when the client has found the broker again.
func (r *rig) Break(f delivertest.Fault) {
	r.flaky.Store(f == delivertest.Flaky)
	if f == delivertest.Flaky {
		f = delivertest.None
	}
	r.Proxy.Break(f)
	if f != delivertest.None {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if err := r.way.client.ProduceSync(ctx, &kgo.Record{Topic: "probe"}).FirstErr(); err == nil {
			return
		}
	}
	r.t.Error("the broker is not found again")
}

// control makes the broker refuse three of ten requests while it is flaky. The client repairs
// broken connections by itself.
func (r *rig) control(cluster *kfake.Cluster) func(kmsg.Request) (kmsg.Response, error, bool) {
	return func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if !r.flaky.Load() || rand.Float64() > 0.3 {
			return nil, nil, false
		}
		asked := request.(*kmsg.ProduceRequest)
		answer := asked.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range asked.Topics {
			topic := kmsg.NewProduceResponseTopic()
			topic.Topic, topic.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				partition := kmsg.NewProduceResponseTopicPartition()
				partition.Partition, partition.ErrorCode = p.Partition, kerr.InvalidRecord.Code
				topic.Partitions = append(topic.Partitions, partition)
			}
			answer.Topics = append(answer.Topics, topic)
		}
		return answer, nil, true
	}
}

// read hands the records of the topic to the receiver.
func (r *rig) read(t *testing.T, cluster *kfake.Cluster) {
	client := consumer(t, cluster, "expired")
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			fetches := client.PollFetches(ctx)
			if ctx.Err() != nil || fetches.IsClientClosed() {
				return
			}
			fetches.EachRecord(func(m *kgo.Record) {
				headers := headersOf(m)
				attempt, _ := strconv.Atoi(headers["lapse-attempt"])
				r.receiver.Receive(context.Background(), delivertest.Arrival{
					ID: headers["lapse-id"], Attempt: attempt, Payload: m.Value, Headers: headers,
				})
			})
		}
	})
	t.Cleanup(func() { cancel(); reading.Wait() })
}

// consumer reads topics from their beginnings, past any fault.
func consumer(t *testing.T, cluster *kfake.Cluster, topics ...string) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func headersOf(m *kgo.Record) map[string]string {
	headers := map[string]string{}
	for _, h := range m.Headers {
		headers[h.Key] += strings.TrimSpace(string(h.Value))
	}
	return headers
}
