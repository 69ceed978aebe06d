// Package tracing makes spans of what a scheduler does, with a TracerProvider of OpenTelemetry.
//
//	cfg.Tracer = tracing.New(provider)
//	s, err := tasks.Open(ctx, ledger, cfg)
//
// A call that creates tasks is a span of the kind producer, a child of the span that has caused it.
// Its context is the trace that the tasks keep. Each attempt is a span of the kind consumer, in a
// trace of its own, since it may come days later: it has a link to the trace that its task keeps.
// Names and attributes are those of the semantic conventions for messaging. docs/operations.md
// lists them.
//
// It calls package tasks/task and the API of OpenTelemetry, and knows neither schedulers nor
// exporters: package otlp has those of the server. Nothing here fails or waits.
package tracing
