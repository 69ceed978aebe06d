package kafka

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lapsehq/lapse/adapters/internal/broker"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/object"
)

// Kind is the way's name in a topic's settings.
const Kind tasks.Kind = "kafka"

// DefaultTimeout is how long an attempt may take unless Config says otherwise: 10 s.
const DefaultTimeout = broker.DefaultTimeout

// Config configures a way. The zero value of every field is its default.
type Config struct {
	// Brokers are some of the cluster's, host:port, by which the others are found.
	// Default: 127.0.0.1:9092.
	Brokers []string
	// Options are those of the client, such as TLS, SASL and compression. The way itself sets that
	// all replicas acknowledge, that the producer is idempotent and how long an attempt may take.
	Options []kgo.Opt
	// Timeout is how long an attempt waits for the cluster at most, 2 s to 1 h; a
	// lease that ends sooner ends it sooner. Default: DefaultTimeout.
	Timeout time.Duration
}

// A Way delivers into topics, by one client. It implements tasks.Way and tasks.Tally, and
// may be used from many goroutines at once.
type Way struct {
	client  *kgo.Client
	timeout time.Duration
	tally   *tasks.Tallier[outcome]
}

// New makes a way. It connects when the first task is delivered. The error lists
// everything in the configuration that is wrong.
func New(cfg Config) (*Way, error) {
	var all *multierror.Error
	if len(cfg.Brokers) == 0 {
		cfg.Brokers = []string{"127.0.0.1:9092"}
	}
	for i, b := range cfg.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			all = multierror.Append(all, fmt.Errorf("brokers[%d]: want host:port", i))
		}
	}
	within, err := broker.Timeout(cfg.Timeout, 2*time.Second)
	if err != nil {
		all = multierror.Append(all, err)
	}
	// This is how soon brokers that are back are found.
	options := append([]kgo.Opt{kgo.MetadataMinAge(time.Second)}, cfg.Options...)
	options = append(options,
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0), // deliveries have been gathered already
		// An attempt that is given up takes its record back, even if the record may have been sent:
		// one that is left would come in addition to that of the next attempt.
		kgo.AllowIdempotentProduceCancellation(),
		// The client can then still say what was wrong.
		kgo.RecordDeliveryTimeout(within-time.Second),
		kgo.ProduceRequestTimeout(within),
	)
	if all.ErrorOrNil() == nil {
		client, err := kgo.NewClient(options...)
		if err == nil {
			return &Way{client: client, timeout: within, tally: tasks.NewTallier[outcome](outcomeNames)}, nil
		}
		all = multierror.Append(all, fmt.Errorf("options: %w", err))
	}
	return nil, all.ErrorOrNil()
}

// Kind implements tasks.Way.
func (w *Way) Kind() tasks.Kind { return Kind }

const (
	topicProblem = "must be the name of a Kafka topic: 1 to 249 characters of A-Z a-z 0-9 . _ -"
	keyProblem   = "must be id, group, header: with the name of a header in lower case, or none"
)

// Deliverer implements tasks.Way.
func (w *Way) Deliverer(_ string, settings json.RawMessage) (tasks.Deliverer, error) {
	o := object.Parse(settings)
	p := &producer{way: w}
	p.topic = o.Text("topic", "", topicProblem, validTopic)
	if !o.Has("topic") {
		o.Fault("topic", topicProblem)
	}
	var ok bool
	if p.key, ok = keyOf(o.Text("key", "id", keyProblem, nil)); !ok {
		o.Fault("key", keyProblem)
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

func validTopic(s string) bool {
	bad := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}
	return s != "" && len(s) <= 249 && s != "." && s != ".." && !strings.ContainsFunc(s, bad)
}

// Close ends the client. Call it once the scheduler is closed: attempts fail from then on.
func (w *Way) Close() { w.client.Close() }
