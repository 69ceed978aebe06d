package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A target is a task with a delivery of its own.
type target struct {
	mu       sync.Mutex // guards all
	due      time.Time
	span     crash.Span // of its creation
	accepted bool
	may      map[string]time.Time // until when a path may be called; zero: still
	got      int
}

var targetFeature = feature{
	name: "target", does: "webhooks whose tasks have a URL of their own, which PATCH changes",
	acts:  []act{{4, (*caller).aim}},
	begin: (*fleet).listen,
	left: func(f *fleet) string {
		if n := len(f.undelivered()); n > 0 {
			return fmt.Sprintf("%d webhooks are owed", n)
		}
		return ""
	},
	judge: func(f *fleet) {
		for _, x := range f.undelivered() {
			f.broke("target", x.span, "never sent, and accepted by %s", x.span)
		}
	},
}

// undelivered lists what is owed.
func (f *fleet) undelivered() (list []*target) {
	f.grown.mu.Lock()
	defer f.grown.mu.Unlock()
	for _, x := range f.grown.targets {
		x.mu.Lock()
		if x.accepted && x.got == 0 {
			if _, ok := f.bench().Forgotten(f.history, x.span); !ok {
				list = append(list, x)
			}
		}
		x.mu.Unlock()
	}
	return list
}

// listen starts the receiver of webhooks, and sets the topic up.
func (f *fleet) listen() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.grown.url = "http://" + l.Addr().String()
	server := &http.Server{Handler: http.HandlerFunc(f.hook), ReadHeaderTimeout: 10 * time.Second}
	f.grown.hooks = server
	f.watching.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			f.wrong("receiver", "%v", err)
		}
	})
	f.set("hooks", `,"task_delivery":true,"delivery":{"kind":"webhook","timeout":"2s","url":"`+f.grown.url+`/default"}`)
}

// hook answers a webhook, one in ten with a failure.
func (f *fleet) hook(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	var payload struct{ N int }
	if err := json.Unmarshal(body, &payload); err != nil {
		f.wrong("strange webhook", "%v: %.200s", err, body)
		return
	}
	f.note("webhook %s %s", r.URL.Path, body)
	f.grown.mu.Lock()
	x := f.grown.targets[payload.N]
	f.grown.mu.Unlock()
	if x == nil {
		f.wrong("strange webhook", "no task has the number: %.200s", body)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	at := crash.Span{Start: x.span.Start, End: now}
	switch until, ok := x.may[r.URL.Path]; {
	case !ok:
		f.broke("target", at, "task %d was sent to %s, which it never named", payload.N, r.URL.Path)
	case !until.IsZero() && now.After(until):
		f.broke("target", at, "task %d was sent to %s, which it did not name any more since %s", payload.N, r.URL.Path, rig.Stamp(until))
	case now.Before(x.due):
		f.broke("target", at, "task %d was sent before its deadline", payload.N)
	}
	if x.got++; payload.N%10 == x.got {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// aim schedules a task with a target of its own, and changes that half of the time.
func (c *caller) aim(ctx context.Context, r *run) {
	o := c.fresh()
	o.id = fmt.Sprintf("t%d-%d", c.name, c.last)
	path := "/of/" + o.id
	x := &target{due: o.due, span: crash.Span{Start: time.Now()}, may: map[string]time.Time{path: {}}}
	c.fleet.grown.mu.Lock()
	c.fleet.grown.targets[o.n] = x
	c.fleet.grown.mu.Unlock()
	aim := func(path string) string { return `"delivery":{"url":"` + c.fleet.grown.url + path + `"}` }
	a := c.fleet.ask(r, http.MethodPost, "/v1/tasks", fmt.Appendf(nil, `{"topic":"hooks","id":%q,"due_at":%q,"payload":{"n":%d},%s}`,
		o.id, rig.Wire(o.due), o.n, aim(path)))
	x.mu.Lock()
	x.span = a.Span
	x.accepted = a.outcome == crash.Done
	x.mu.Unlock()
	if !x.accepted || c.rng.IntN(2) == 0 {
		return
	}
	if r = c.fleet.pick(ctx, c.rng, nil); r == nil {
		return
	}
	other := strings.Replace(path, "/of/", "/other/", 1)
	x.mu.Lock()
	x.may[other] = time.Time{}
	x.mu.Unlock()
	a = c.fleet.ask(r, http.MethodPatch, "/v1/tasks/"+o.id, []byte(`{`+aim(other)+`}`))
	x.mu.Lock()
	defer x.mu.Unlock()
	if a.outcome == crash.Done {
		// What was under way may arrive, and a node may stand still meanwhile.
		x.may[path] = a.End.Add(c.fleet.bench().Patience + 2*c.fleet.failoverAfter)
	}
}
