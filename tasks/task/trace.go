package task

import (
	"context"
	"strings"
)

// The headers of W3C Trace Context. A task has them under these names.
const (
	TraceParent = "traceparent"
	TraceState  = "tracestate"
)

// Limits of a tracestate, which is left out beyond them.
const (
	maxTraceState   = 512 // bytes
	maxTraceMembers = 32
)

// A TraceContext names the span of a distributed trace that has caused a call, as W3C Trace Context
// writes it. The zero value names none.
type TraceContext struct {
	Parent string // traceparent
	State  string // tracestate; empty: none
}

// ParseTrace returns the trace context that two headers of a request say. It is the zero value if
// the traceparent is not valid. A tracestate that is not valid is left out.
func ParseTrace(parent, state string) TraceContext {
	const version, flags, size = 2, 53, 55 // where the version ends, the flags begin, all ends
	switch {
	case len(parent) < size, !isHex(parent[:version]), parent[:version] == "ff":
		return TraceContext{}
	case len(parent) > size && (parent[:version] == "00" || parent[size] != '-'):
		return TraceContext{} // later versions may have more fields behind these
	}
	p := parent[:size]
	trace, span := p[version+1:35], p[36:flags-1]
	if p[version] != '-' || p[35] != '-' || p[flags-1] != '-' || !isHex(trace) || !isHex(span) || !isHex(p[flags:]) ||
		strings.Trim(trace, "0") == "" || strings.Trim(span, "0") == "" {
		return TraceContext{}
	}
	if !validTraceState(state) {
		state = ""
	}
	return TraceContext{Parent: "00" + p[version:], State: state}
}

func isHex(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// validTraceState reports whether a list of members can be sent on: printable ASCII, key=value
// each.
func validTraceState(state string) bool {
	if len(state) > maxTraceState || strings.Count(state, ",") >= maxTraceMembers {
		return false
	}
	for i := range len(state) {
		if state[i] < ' ' || state[i] > '~' {
			return false
		}
	}
	for member := range strings.SplitSeq(state, ",") {
		if member = strings.TrimSpace(member); member != "" && strings.IndexByte(member, '=') < 1 {
			return false
		}
	}
	return true
}

// WithTrace returns the context of a Schedule, ScheduleBatch or Replace that the trace has caused.
// The tasks keep it in their headers, where their receivers find it. It does not count as a part of
// the request: a repeated one may have another trace. A task whose own headers have a traceparent
// or a tracestate keeps those, and one whose headers leave no room for it goes without.
func WithTrace(ctx context.Context, t TraceContext) context.Context {
	c := conditionsOf(ctx)
	c.Trace = t
	return c.In(ctx)
}

// TraceOf returns the trace of a call, the zero value if there is none.
func TraceOf(ctx context.Context) TraceContext { return conditionsOf(ctx).Trace }
