package cluster

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// wireTerms are the terms of a call on their way to another node.
type wireTerms struct {
	Topics     []string `json:",omitempty"`
	MaxTopics  int      `json:",omitempty"`
	MaxPending int      `json:",omitempty"`
	Reserved   bool     `json:",omitempty"`
	Revision   int64    `json:",omitempty"`
	Created    int64    `json:",omitempty"`
}

// encodeTerms returns the terms of a call; nil if there are none.
func encodeTerms(ctx context.Context) *wireTerms {
	t := task.TermsOf(ctx)
	if t == nil {
		return nil
	}
	w := &wireTerms{Revision: t.Version.Revision}
	if !t.Version.Created.IsZero() {
		w.Created = t.Version.Created.UnixMilli()
	}
	if g := t.Grant; g != nil {
		w.Topics, w.MaxTopics, w.MaxPending, w.Reserved = g.Topics, g.MaxTopics, g.MaxPending, g.Reserved
	}
	return w
}

// in makes the context of a question that another node has asked on these terms.
func (w *wireTerms) in(ctx context.Context) context.Context {
	if w == nil {
		return ctx
	}
	t := task.Terms{Grant: &task.Grant{Topics: w.Topics, MaxTopics: w.MaxTopics, MaxPending: w.MaxPending, Reserved: w.Reserved}, Version: task.Version{Revision: w.Revision}}
	if w.Created != 0 {
		t.Version.Created = engine.FromMillis(w.Created)
	}
	return t.In(ctx)
}
