// Package otlp sends spans to a collector, as the environment variables of OpenTelemetry say: OTLP
// over HTTP, with protobuf.
//
//	p, err := otlp.Open(otlp.Config{Node: node, Version: version, Log: log})
//	if p != nil { cfg.Tracer = tracing.New(p) }
//	...
//	p.Close()
//
// It owns the queue of spans that wait, which is bounded, and the connection to the collector. It
// takes the exporter of OpenTelemetry without its HTTP client: that links gRPC, which makes the
// program half as large again.
//
// What can fail: Open names the variables that are wrong. A collector that is slow, away or full
// delays nothing. Spans that find no room are dropped, those that it does not take or rejects are
// lost, and both are counted in the log, once a minute. No error has the URL of the collector.
package otlp
