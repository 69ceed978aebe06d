package campaign

import (
	"context"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/scripts/crash"
)

// A machine with too little processor time stops nodes and Redis as a fault does. So each is asked
// all the time for something that takes it no time. What takes it long is noted as a fault, though
// no plan has it, and counted in the verdict.

// probeEvery is the period of the questions.
const probeEvery = 100 * time.Millisecond

// watchStalls asks until the fleet is closed.
func (f *fleet) watchStalls() {
	for _, n := range f.nodes {
		client := &http.Client{Timeout: startWithin}
		f.watching.Go(func() {
			defer client.CloseIdleConnections()
			f.probe(crash.Stopped, n.name, func(ctx context.Context) bool {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.latest().base+"/healthz", nil)
				if err != nil {
					return false
				}
				resp, err := client.Do(req)
				if err != nil {
					return false
				}
				return resp.Body.Close() == nil
			})
		})
	}
	f.watching.Go(func() {
		f.probe(crash.Hung, "", func(ctx context.Context) bool {
			c := redis.NewClient(&redis.Options{Addr: f.redis.now(), Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, ReadTimeout: startWithin})
			defer c.Close()
			return c.Ping(ctx).Err() == nil
		})
	})
}

// probe notes each question that was answered late. One that fails is none.
func (f *fleet) probe(trouble crash.Trouble, node string, ask func(ctx context.Context) bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f.watching.Go(func() { <-f.closing; cancel() })
	for !f.stopping() {
		start := time.Now()
		if ask(ctx) && time.Since(start) > f.failoverAfter/3 {
			f.history.Note(crash.Fault{Trouble: trouble, Node: node, Start: start, End: time.Now()})
			f.stalls.Add(1)
		}
		f.rest(probeEvery)
	}
}
