package httpapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/lapsehq/lapse/tasks"
)

// withTrace returns the context of a request that creates tasks, with the trace that its headers
// name. A traceparent that is not valid, or that comes twice, does not count.
func withTrace(ctx context.Context, r *http.Request) context.Context {
	parent := r.Header["Traceparent"]
	if len(parent) != 1 {
		return ctx
	}
	t := tasks.ParseTrace(parent[0], strings.Join(r.Header["Tracestate"], ","))
	if t.Parent == "" {
		return ctx
	}
	return tasks.WithTrace(ctx, t)
}
