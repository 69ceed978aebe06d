package relay

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// A wire carries messages between two relays at once.
type wire struct {
	inbox map[string]chan []byte
	node  string
}

func (w wire) Listen(receive func([]byte)) error {
	inbox := w.inbox[w.node]
	go func() {
		for m := range inbox {
			receive(m)
		}
	}()
	return nil
}

func (w wire) StopListening(context.Context) {}

func (w wire) Send(_ context.Context, node string, message []byte) error {
	w.inbox[node] <- message
	return nil
}

// BenchmarkCall is a call of 200 bytes with an equally long answer, from so many callers at
// once.
func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 64, 1024} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			inbox := map[string]chan []byte{"a": make(chan []byte, 1024), "b": make(chan []byte, 1024)}
			ends := map[string]*Relay{}
			for node := range inbox {
				r, err := New(Config{Bus: wire{inbox, node}, Node: node, Incarnation: "1",
					Answer: func(_ context.Context, q Call) []byte { return q.Body }})
				if err != nil {
					b.Fatal(err)
				}
				ends[node] = r
			}
			body := make([]byte, 200)
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			// The cost of remembering calls is included.
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for w := range callers {
				wg.Go(func() {
					own, done := context.WithTimeout(ctx, 5*time.Second)
					for i := w; i < b.N; i += callers {
						if i%1000 < callers {
							done()
							own, done = context.WithTimeout(ctx, 5*time.Second)
						}
						if _, err := ends["a"].Call(own, "b", "get", body); err != nil {
							b.Error(err)
							break
						}
					}
					done()
				})
			}
			wg.Wait()
			b.StopTimer()
			for node, r := range ends {
				r.Close()
				close(inbox[node])
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}
