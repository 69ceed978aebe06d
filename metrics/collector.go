package metrics

import (
	"context"
	"net/http"
	"reflect"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lapsehq/lapse/internal/stamp"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// Callers choose topics, and every label value costs memory in each Prometheus that scrapes. So at
// most MaxTopics have series of their own: first those that have settings, then the busiest. The
// others are added up under OtherTopics, which is no valid name of a topic. A topic may move to
// OtherTopics when others get busier.
const (
	MaxTopics   = tasks.MaxStatsTopics
	OtherTopics = "_other"
)

// A source has the figures of a scheduler; it is *tasks.Scheduler.
type source interface {
	Stats() tasks.Stats
	Nodes(context.Context) ([]tasks.Node, error)
}

// Collector is a prometheus.Collector over a scheduler's Stats.
type Collector struct {
	source source
	server Server // nil: there is none
	port   Port   // nil: there is none
	log    Log    // nil: there is none
	nodes  nodes
}

// A Server has the figures of an HTTP server that a program makes of a scheduler. Package httpapi
// has one, as cli shows.
type Server interface {
	// Refusals returns how many requests have met which bound, see httpapi.Server.Refusals.
	Refusals() map[string]int64
	// EachRoute calls visit with how long the requests of each route took, see
	// httpapi.Server.EachRoute.
	EachRoute(visit func(method, route, status string, took tasks.Latency))
}

// A Port has the figures of a port for clients of Redis. Package respapi has one.
type Port interface {
	// Connections returns how many there are, and how many there have been by outcome.
	Connections() (now int, total map[string]int64)
	// WrongTokens returns how often clients showed a token that the node does not know.
	WrongTokens() int64
	// EachCommand calls visit with how often each command was done, how often it failed, and how
	// long both took.
	EachCommand(visit func(name string, done, failed int64, took tasks.Latency))
	// Subscribers returns how many there are, and how many were cut off.
	Subscribers() (now int, cut int64)
	// EventsDropped returns how many events subscribers have not got, by reason.
	EventsDropped() map[string]int64
}

// NewCollector makes a collector, for a program with a registry of its own.
func NewCollector(s *tasks.Scheduler) *Collector { return &Collector{source: s.Admin()} }

// Handler answers scrapes with the metrics of the scheduler, of the Go runtime
// and of the process.
func Handler(s *tasks.Scheduler) http.Handler { return handler(s.Admin(), nil, nil, nil) }

// A Log is what a server writes its log to.
type Log interface {
	Dropped() int64 // lines that were not written, since the start
}

// ServerHandler is Handler with the figures of an HTTP server, and of a port for clients of Redis,
// nil if there is none, and of the log.
func ServerHandler(s *tasks.Scheduler, of Server, port Port, log Log) http.Handler {
	return handler(s.Admin(), of, port, log)
}

func handler(s source, of Server, port Port, log Log) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(&Collector{source: s, server: of, port: port, log: log}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}

// Describe lists the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range all {
		ch <- d
	}
}

// Collect reads the scheduler's figures.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.source.Stats()
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}

	for _, t := range bounded(&s) {
		n := &t.Counts
		show(ch, ofTopic, reflect.ValueOf(n).Elem(), s.At, t.Name)
		gauge(recent, n.Recent.Quantile(0.5).Seconds(), t.Name, "50")
		gauge(recent, n.Recent.Quantile(0.99).Seconds(), t.Name, "99")
		gauge(recent, n.Recent.Max.Seconds(), t.Name, "100")
		ch <- histogram(&n.Lateness, t.Name)
		if t.Name != OtherTopics {
			gauge(paused, truth(t.Settings.Paused), t.Name)
		}
	}

	show(ch, ofNode, reflect.ValueOf(&s).Elem(), s.At)
	for _, way := range s.Ways {
		for outcome, n := range way.Outcomes {
			counter(deliveryOutcomes, n, string(way.Kind), outcome)
		}
	}
	for kind, took := range s.Took.Attempts {
		ch <- durations(deliveryTook, &took, string(kind))
	}

	gauge(info, 1, s.Node)
	version, revision := stamp.Read()
	gauge(build, 1, version, revision, runtime.Version())
	gauge(ledgerAccepting, truth(s.Readiness.Condition == ""))
	ch <- durations(commitTook, &s.Took.Commits)
	gauge(clockOffset, 0, s.Node)
	for i := range s.Clocks {
		gauge(clockOffset, s.Clocks[i].Ahead.Seconds(), s.Clocks[i].Node)
	}

	if c.log != nil {
		counter(logDropped, c.log.Dropped())
	}
	if c.server != nil {
		for reason, n := range c.server.Refusals() {
			counter(httpRefused, n, reason)
		}
		c.server.EachRoute(func(method, route, status string, took tasks.Latency) {
			ch <- durations(httpTook, &took, method, route, status)
		})
	}

	if c.port != nil {
		now, total := c.port.Connections()
		gauge(respNow, float64(now))
		for outcome, n := range total {
			counter(respTotal, n, outcome)
		}
		counter(respGuesses, c.port.WrongTokens())
		c.port.EachCommand(func(name string, done, failed int64, took tasks.Latency) {
			counter(respCommands, done, name, "done")
			counter(respCommands, failed, name, "error")
			ch <- durations(respTook, &took, name)
		})
		subscribers, cut := c.port.Subscribers()
		gauge(respSubscribers, float64(subscribers))
		counter(respCut, cut)
		for reason, n := range c.port.EventsDropped() {
			counter(respDropped, n, reason)
		}
	}

	for state, n := range c.nodes.byState(c.source, time.Now()) {
		gauge(nodesNow, float64(n), string(state))
	}
	gauge(shardsNow, float64(s.ShardsHeld-s.ShardsAdopted), "own")
	gauge(shardsNow, float64(s.ShardsAdopted), "adopted")
	gauge(shardsNow, float64(s.Readiness.Away), "away")
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// age is 0 for the zero time, and for a time in the future of a clock that was set back.
func age(since, now time.Time) float64 {
	if since.IsZero() {
		return 0
	}
	return max(0, now.Sub(since).Seconds())
}

func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// bounded merges the topics that Stats leaves out, and those beyond MaxTopics, into one.
func bounded(s *tasks.Stats) []task.Topic {
	other := task.Topic{Name: OtherTopics, Counts: s.Others}
	shown := min(len(s.Topics), MaxTopics)
	for i := range s.Topics[shown:] {
		other.Counts.Add(&s.Topics[shown+i].Counts)
	}
	topics := s.Topics[:shown:shown]
	if s.Beyond > 0 || shown < len(s.Topics) {
		topics = append(topics, other)
	}
	return topics
}

// histogram makes a metric of the lateness of a topic's tasks.
func histogram(h *tasks.Histogram, topic string) prometheus.Metric {
	return buckets(lateness, tasks.LatenessBounds[:], h.Counts[:], h.Sum, topic)
}

// durations makes a metric of how long something took.
func durations(d *prometheus.Desc, took *tasks.Latency, labels ...string) prometheus.Metric {
	return buckets(d, tasks.LatencyBounds[:], took.Buckets[:], took.Sum, labels...)
}

// buckets turns counts per bucket, of which there is one more than there are bounds, into the
// cumulative ones of Prometheus.
func buckets(d *prometheus.Desc, bounds []time.Duration, counts []int64, sum time.Duration, labels ...string) prometheus.Metric {
	upTo := make(map[float64]uint64, len(bounds))
	var count uint64
	for i, bound := range bounds {
		count += uint64(counts[i])
		upTo[bound.Seconds()] = count
	}
	count += uint64(counts[len(bounds)])
	return prometheus.MustNewConstHistogram(d, count, sum.Seconds(), upTo, labels...)
}
