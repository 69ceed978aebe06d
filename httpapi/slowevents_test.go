package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// listen asks for events on a connection in fake time, where nothing is kept on the way:
// what the reader does not take, the server cannot write.
func (w *wire) listen(headers string) *stream {
	w.t.Helper()
	w.say("GET " + eventsPath + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n")
	a, err := http.ReadResponse(w.answers, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { a.Body.Close() })
	return newStream(w.t, a)
}

// scheduleMany schedules n tasks of topic x.
func scheduleMany(t testing.TB, s *tasks.Scheduler, n int, delay time.Duration) {
	t.Helper()
	requests := make([]tasks.Request, n)
	for i := range requests {
		requests[i] = tasks.Request{Topic: "x", Delay: delay}
	}
	results, err := s.ScheduleBatch(context.Background(), requests)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

// A stream in which nothing happens stays open, and says so every 15 seconds.
func TestQuietEventStream(t *testing.T) {
	slowly(t, func(w *wire, s *tasks.Scheduler) {
		stream := w.listen("")
		const beats = 40 // as long as no answer may take
		go func() {
			time.Sleep(beats*heartbeat + time.Second) // fake
			scheduleMany(t, s, 1, time.Hour)
		}()
		e, err := stream.next()
		if err != nil || e.kind != "scheduled" || stream.beats < beats-1 || stream.beats > beats {
			t.Errorf("after %d beats told %v, %v", stream.beats, e, err)
		}
		w.Close()
		time.Sleep(2 * heartbeat) // fake
		if n := w.api.openStreams() + int64(s.Stats().Subscriptions); n != 0 {
			t.Error("the stream outlives its reader")
		}
	})
}

// A single event is written at once.
func TestEventsAreToldAtOnce(t *testing.T) {
	slowly(t, func(w *wire, s *tasks.Scheduler) {
		stream := w.listen("")
		for range 3 {
			time.Sleep(time.Second) // fake
			began := time.Now()
			scheduleMany(t, s, 1, time.Hour)
			if e, err := stream.next(); err != nil || time.Since(began) > time.Millisecond {
				t.Errorf("told %v after %v (%v)", e, time.Since(began), err)
			}
		}
	})
}

// A reader that is slow gets every event, or learns that it was lost: the numbers say where.
func TestSlowEventReader(t *testing.T) {
	slowly(t, func(w *wire, s *tasks.Scheduler) {
		stream := w.listen("")
		const rounds, number = 6, 5000
		var got, lost, gaps int64
		read := func() bool {
			e, err := stream.next()
			switch {
			case err != nil:
				t.Error(err)
				return false
			case e.kind == "lost":
				lost, gaps = lost+e.Count, gaps+1
				if e.data != fmt.Sprintf(`{"kind":"lost","node":"local","count":%d}`, e.Count) || e.Count < 1 {
					t.Errorf("told %s", e.data)
				}
			default:
				got++
			}
			if e.number != got+lost {
				t.Errorf("event %d has number %d, with %d lost before", got, e.number, lost)
			}
			return got+lost < rounds*number
		}
		for range rounds {
			scheduleMany(t, s, number, time.Hour)
			time.Sleep(time.Second) // fake
			for range 1000 {
				read()
			}
		}
		for read() {
		}
		if gaps < 2 || lost < number || got < number || s.Stats().EventsLost != lost {
			t.Errorf("%d told, %d lost in %d gaps; %d counted", got, lost, gaps, s.Stats().EventsLost)
		}
	})
}

// A reader that does not read is cut off, and tasks are delivered as if it were not there.
func TestStuckEventReader(t *testing.T) {
	slowly(t, func(w *wire, s *tasks.Scheduler) {
		if err := s.Handle("x", func(context.Context, *tasks.Delivery) error { return nil }); err != nil {
			t.Fatal(err)
		}
		w.listen("")
		const number = 10_000
		scheduleMany(t, s, number, 0)
		synctest.Wait()
		if n := s.Stats().Total.Delivered; n != number {
			t.Errorf("%d of %d were delivered", n, number)
		}
		time.Sleep(answerTimeout - time.Second) // fake
		if w.api.openStreams() != 1 {
			t.Error("cut off too early")
		}
		time.Sleep(2 * time.Second) // fake
		if n := w.api.openStreams() + int64(s.Stats().Subscriptions); n != 0 {
			t.Error("the stream is still open")
		}
		if rest, err := io.ReadAll(w.answers); len(rest) > 2*eventPiece {
			t.Errorf("%d bytes were left, %v", len(rest), err)
		}
	})
}

// A server that ends does not wait for a reader that is stuck, nor for one that is quiet.
func TestShutdownCutsEventStreams(t *testing.T) {
	for name, events := range map[string]int{"quiet": 0, "stuck": 10_000} {
		t.Run(name, func(t *testing.T) {
			slowly(t, func(w *wire, s *tasks.Scheduler) {
				stream := w.listen("")
				if events > 0 {
					scheduleMany(t, s, events, time.Hour)
				}
				time.Sleep(time.Second) // fake
				began := time.Now()
				w.api.Close()
				if events == 0 {
					if e, err := stream.next(); !errors.Is(err, io.EOF) {
						t.Errorf("told %v, %v", e, err)
					}
				}
				time.Sleep(2*time.Second - time.Since(began)) // fake
				if w.api.openStreams() != 0 {
					t.Error("the stream is still open")
				}
			})
		})
	}
}

// A stream ends when its token is revoked: one without events at once, and one with so many that
// the reader is never done within a minute.
func TestRevokedTokenWithinAMinute(t *testing.T) {
	for name, busy := range map[string]bool{"quiet": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			slowly(t, func(w *wire, s *tasks.Scheduler) {
				read := tokenOf("read", edge.ScopeRead)
				w.api.callers = callersOf(read)
				stream := w.listen(bearer("read") + "\r\n")
				if busy {
					scheduleMany(t, s, 5000, time.Hour)
				}
				read.Scopes = []edge.Scope{edge.ScopeSchedule}
				if err := w.api.callers.Set([]edge.Token{read}); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for {
					if _, err := stream.next(); err != nil {
						break
					}
					time.Sleep(50 * time.Millisecond) // fake; a piece takes about 15 seconds
				}
				within := time.Second
				if busy {
					within = time.Minute
				}
				if took := time.Since(began); took > within {
					t.Errorf("cut off after %v", took)
				}
			})
		})
	}
}

// A reader on a real connection that never reads delays nothing. Once it has gone, nothing of it is
// left.
func TestEventReaderThatNeverReads(t *testing.T) {
	r := newRig(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", eventsPath)
	if line, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 200") {
		t.Fatalf("answered %q, %v", line, err)
	}
	if err := r.scheduler.Handle("x", func(context.Context, *tasks.Delivery) error { return nil }); err != nil {
		t.Fatal(err)
	}
	const number = 10_000
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	rounds := int64(0)
	for r.scheduler.Stats().EventsLost == 0 { // until nothing more fits on the way
		scheduleMany(t, r.scheduler, number, 0)
		for rounds++; r.scheduler.Stats().Total.Delivered < rounds*number; {
			<-tick.C
		}
	}
	conn.Close()
	r.streams(0)
}
