package client

import (
	"context"
	"net/http"
)

type ifMatchKey struct{}

// IfMatch returns a context in which Replace, Reschedule, Cancel, Fire, Hold and Resume change the
// task only if it has that ETag still. Otherwise they return ErrRevision: another caller may have
// changed the task, or another task may have its id. Such a call is not repeated while its outcome
// is unknown, since it would find its own change.
func IfMatch(ctx context.Context, etag string) context.Context {
	return context.WithValue(ctx, ifMatchKey{}, etag)
}

// withIfMatch adds the condition of the context to a call.
func (q *call) withIfMatch(ctx context.Context) {
	if etag, ok := ctx.Value(ifMatchKey{}).(string); ok {
		q.header, q.effect = http.Header{"If-Match": {etag}}, again
	}
}
