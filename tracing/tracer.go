package tracing

import (
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/lapsehq/lapse/tasks/task"
)

// scope names the instrumentation.
const scope = "github.com/lapsehq/lapse/tracing"

// Attributes of Lapse.
const (
	kindKey     = attribute.Key("lapse.delivery.kind")
	attemptKey  = attribute.Key("lapse.task.attempt") // 1 and up
	dueKey      = attribute.Key("lapse.task.due")
	outcomeKey  = attribute.Key("lapse.outcome")
	acceptedKey = attribute.Key("lapse.batch.accepted") // tasks of the batch that were created
)

// dueLayout is RFC 3339 with milliseconds.
const dueLayout = "2006-01-02T15:04:05.000Z07:00"

// Tracer is a task.Tracer over OpenTelemetry.
type Tracer struct {
	tracer trace.Tracer
	w3c    propagation.TraceContext
}

// New returns a tracer whose spans the provider makes.
func New(provider trace.TracerProvider) *Tracer {
	return &Tracer{tracer: provider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
}

// Schedule implements task.Tracer. A span in ctx is the parent, else what TraceOf names. The tasks
// keep the trace of that parent where the call's own span is not sampled. Without a parent they
// keep the context of the own span all the same: samplers that go by the link find there that the
// call was not sampled.
func (t *Tracer) Schedule(ctx context.Context, requests []task.Request) (task.TraceContext, func([]task.Result)) {
	caused := task.TraceOf(ctx)
	if trace.SpanContextFromContext(ctx).IsValid() {
		caused = t.contextOf(ctx)
	} else {
		ctx = t.extract(ctx, carrier(caused))
	}
	name, attributes := "schedule", []attribute.KeyValue{
		semconv.MessagingSystemKey.String("lapse"), semconv.MessagingOperationName("schedule"), semconv.MessagingOperationTypeSend,
	}
	if topic := topicOf(requests); topic != "" {
		name += " " + topic
		attributes = append(attributes, semconv.MessagingDestinationName(topic))
	}
	if len(requests) == 1 {
		attributes = append(attributes, semconv.MessagingMessageBodySize(len(requests[0].Payload)))
	} else {
		attributes = append(attributes, semconv.MessagingBatchMessageCount(len(requests)))
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes...))
	kept := caused
	if kept.Parent == "" || sent(span) {
		kept = t.contextOf(ctx)
	}
	return kept, func(results []task.Result) { endSchedule(span, len(requests), results) }
}

// topicOf returns the topic of all requests; empty if there are several, or if it is not valid.
func topicOf(requests []task.Request) string {
	topic := ""
	for i := range requests {
		if i > 0 && requests[i].Topic != topic {
			return ""
		}
		topic = requests[i].Topic
	}
	if !task.ValidName(topic) {
		return ""
	}
	return topic
}

func endSchedule(span trace.Span, requested int, results []task.Result) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	accepted := 0
	var refused error
	for i := range results {
		if results[i].Err == nil {
			accepted++
		} else if refused == nil {
			refused = results[i].Err
		}
	}
	if requested == 1 {
		if id := results[0].ID; task.ValidName(id) {
			span.SetAttributes(semconv.MessagingMessageID(id))
		}
	} else {
		span.SetAttributes(acceptedKey.Int(accepted))
	}
	if refused != nil && accepted == 0 {
		span.SetAttributes(semconv.ErrorTypeKey.String(errorType(refused)))
		span.SetStatus(codes.Error, reason(refused.Error()))
	}
}

// errorType returns the name of the problem that an error is over HTTP, of those that a creation
// can meet.
func errorType(err error) string {
	for _, k := range [...]struct {
		kind error
		name string
	}{
		{task.ErrInvalid, "invalid"}, {task.ErrTooLarge, "too_large"}, {task.ErrExists, "id_taken"},
		{task.ErrDead, "dead"}, {task.ErrDelivering, "delivering"}, {task.ErrRevision, "precondition_failed"},
		{task.ErrNotGranted, "forbidden"}, {task.ErrQuota, "quota"}, {task.ErrOverloaded, "overloaded"},
		{task.ErrUnknown, "outcome_unknown"}, {task.ErrUnavailable, "ledger_unavailable"}, {task.ErrClosed, "shutting_down"},
	} {
		if errors.Is(err, k.kind) {
			return k.name
		}
	}
	return "_OTHER"
}

// Attempt implements task.Tracer. Where the span is not sampled, the receiver gets the trace that
// the task keeps.
func (t *Tracer) Attempt(ctx context.Context, d *task.Delivery, kind task.Kind) (context.Context, task.TraceContext, func(task.Judgement)) {
	verb, operation := "deliver", semconv.MessagingOperationTypeProcess
	if kind == task.Pull {
		verb, operation = "reserve", semconv.MessagingOperationTypeReceive
	}
	options := []trace.SpanStartOption{
		trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			semconv.MessagingSystemKey.String("lapse"), semconv.MessagingOperationName(verb), operation,
			semconv.MessagingDestinationName(d.Topic), semconv.MessagingMessageID(d.ID), semconv.MessagingMessageBodySize(len(d.Payload)),
			kindKey.String(string(kind)), attemptKey.Int(d.Attempt), dueKey.String(d.Due.UTC().Format(dueLayout)),
		),
	}
	if kept := trace.SpanContextFromContext(t.extract(context.Background(), d.Headers)); kept.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: kept}))
	}
	ctx, span := t.tracer.Start(ctx, verb+" "+d.Topic, options...)
	var own task.TraceContext
	if sent(span) {
		own = t.contextOf(ctx)
	}
	return ctx, own, func(v task.Judgement) { endAttempt(span, &v) }
}

// sent reports whether a span goes to where the provider sends spans, so that others can belong to
// it. What a provider that makes no spans returns may be the span of another one.
func sent(span trace.Span) bool { return span.IsRecording() && span.SpanContext().IsSampled() }

// outcomes name what has become of an attempt.
var outcomes = [...]string{0: "open", task.Ack: "delivered", task.Release: "failed", task.Bury: "buried", task.Return: "returned"}

func endAttempt(span trace.Span, v *task.Judgement) {
	span.SetAttributes(outcomeKey.String(outcomes[v.Verb]))
	if v.Verb == task.Release || v.Verb == task.Bury {
		span.SetAttributes(semconv.ErrorTypeKey.String(outcomes[v.Verb]))
		span.SetStatus(codes.Error, reason(v.Reason))
	}
	span.End()
}

// reason returns a text that a span can have.
func reason(text string) string { return strings.ToValidUTF8(task.Cut(text, task.MaxReason), "?") }

func carrier(c task.TraceContext) propagation.MapCarrier {
	return propagation.MapCarrier{task.TraceParent: c.Parent, task.TraceState: c.State}
}

// extract returns ctx with the span that headers name, if they name one.
func (t *Tracer) extract(ctx context.Context, headers propagation.MapCarrier) context.Context {
	return t.w3c.Extract(ctx, headers)
}

// contextOf returns the trace context of the span in ctx, the zero value if it has none.
func (t *Tracer) contextOf(ctx context.Context) task.TraceContext {
	headers := make(propagation.MapCarrier, 2)
	t.w3c.Inject(ctx, headers)
	return task.TraceContext{Parent: headers[task.TraceParent], State: headers[task.TraceState]}
}
