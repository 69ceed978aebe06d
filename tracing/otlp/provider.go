package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Config configures a provider.
type Config struct {
	Node    string // service.instance.id, unless OTEL_RESOURCE_ATTRIBUTES has one
	Version string // service.version
	Log     *slog.Logger
}

// Provider is a trace.TracerProvider whose spans go to a collector.
type Provider struct {
	trace.TracerProvider
	sdk    *sdk.TracerProvider
	client *client
	lost   *lost
	once   sync.Once
}

// endWithin bounds Close.
const endWithin = 3 * time.Second

// Open returns a provider as the environment asks for, nil if it asks for none. Its error names all
// variables that are wrong. It connects to nothing yet.
func Open(cfg Config) (*Provider, error) {
	e := environment{getenv: os.Getenv}
	s, err := e.read()
	if s == nil || err != nil {
		return nil, err
	}
	return open(cfg, s)
}

func open(cfg Config, s *settings) (*Provider, error) {
	ctx := context.Background()
	from, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("lapse"), semconv.ServiceVersion(cfg.Version), semconv.ServiceInstanceID(cfg.Node)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	p := &Provider{client: newClient(s, cfg.Version)}
	exporter, err := otlptrace.New(ctx, p.client)
	if err != nil {
		return nil, err
	}
	log := cfg.Log.With("endpoint", plain(s.endpoint))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing", "error", err) }))
	p.lost = &lost{log: log, limit: int64(s.queue)}
	batches := sdk.NewBatchSpanProcessor(&counted{exporter, p.lost},
		sdk.WithMaxQueueSize(s.queue), sdk.WithMaxExportBatchSize(s.batch),
		sdk.WithBatchTimeout(s.delay), sdk.WithExportTimeout(s.timeout))
	p.sdk = sdk.NewTracerProvider(sdk.WithResource(from), sdk.WithSampler(s.sampler), sdk.WithSpanProcessor(&bounded{batches, p.lost}))
	p.TracerProvider = p.sdk
	log.Info("traces go to a collector", "sampler", s.samples)
	return p, nil
}

// plain returns a URL without what may be secret.
func plain(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// Close sends the spans that wait, for up to 3 s, with one attempt each. It is idempotent. A nil
// provider has none.
func (p *Provider) Close() {
	if p == nil {
		return
	}
	p.once.Do(func() {
		close(p.client.ending)
		ctx, cancel := context.WithTimeout(context.Background(), endWithin)
		defer cancel()
		err := p.sdk.Shutdown(ctx)
		p.lost.close(err)
	})
}

// lost counts the spans that the collector does not get.
type lost struct {
	log     *slog.Logger
	limit   int64        // how many may wait
	waiting atomic.Int64 // for the collector, or on their way
	dropped atomic.Int64 // they found no room

	mu       sync.Mutex // guards the rest
	closed   bool       // nothing counts any more
	failed   int        // the collector did not take them
	reported time.Time
	err      error // why it did not, the last time
}

// add reports whether there is room for one span more.
func (l *lost) add() bool {
	if l.waiting.Add(1) <= l.limit {
		return true
	}
	l.waiting.Add(-1)
	l.dropped.Add(1)
	return false
}

// exported counts spans that were sent, and those that failed.
func (l *lost) exported(sent, failed int, err error) {
	l.waiting.Add(-int64(sent + failed))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.failed += failed
	if err != nil {
		l.err = err
	}
}

// close reports what is lost at the end: what was not sent by now never is.
func (l *lost) close(err error) {
	l.exported(0, int(l.waiting.Load()), err)
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.report()
}

// due reports whether it is time for a report.
func (l *lost) due(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.reported) < time.Minute {
		return false
	}
	l.reported = now
	return true
}

// report logs what was lost since the report before. What makes spans never waits for that.
func (l *lost) report() {
	dropped := l.dropped.Swap(0)
	l.mu.Lock()
	failed, err := l.failed, l.err
	l.failed, l.err = 0, nil
	l.mu.Unlock()
	if dropped > 0 || failed > 0 {
		l.log.Warn("spans were lost", "dropped", dropped, "failed", failed, "error", err)
	}
}

// bounded drops spans that find no room: no more may wait than the batches have room for, or these
// would drop them without a count.
type bounded struct {
	sdk.SpanProcessor
	lost *lost
}

// OnEnd implements sdk.SpanProcessor.
func (b *bounded) OnEnd(s sdk.ReadOnlySpan) {
	if s.SpanContext().IsSampled() && b.lost.add() {
		b.SpanProcessor.OnEnd(s)
	}
}

// counted counts spans that cannot be exported.
type counted struct {
	sdk.SpanExporter
	lost *lost
}

// ExportSpans implements sdk.SpanExporter. It logs its error itself.
func (c *counted) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	failed := 0
	if r := (*rejection)(nil); errors.As(err, &r) {
		failed = min(r.spans, len(spans))
	} else if err != nil {
		failed = len(spans)
	}
	c.lost.exported(len(spans)-failed, failed, err)
	if c.lost.due(time.Now()) {
		c.lost.report()
	}
	return nil
}
