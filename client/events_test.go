package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/client"
)

// A stream has all events after it was opened, in order, and ends when the loop is left.
func TestEvents(t *testing.T) {
	ctx, c := t.Context(), served(t)
	schedule := func(id, topic string) {
		_, err := c.Schedule(ctx, client.Request{ID: id, Topic: topic, Delay: time.Hour})
		check(t, "Schedule", err, nil)
	}
	schedule("before", "x")
	events, err := c.Events(ctx, client.EventFilter{Topics: []string{"x", "y"}, Kinds: []client.EventKind{client.EventScheduled, client.EventStarted, client.EventRetried, client.EventCancelled}})
	check(t, "Events", err, nil)
	schedule("other", "z")
	schedule("a", "x")
	schedule("b", "y")
	check(t, "Cancel", c.Cancel(ctx, "b"), nil)
	_, err = c.Fire(ctx, "a")
	check(t, "Fire", err, nil)
	for _, d := range reserved(t, c, 1) {
		_, err = c.Release(ctx, nil, "no stock", d.Receipt)
		check(t, "Release", err, nil)
	}
	var got []string
	for e, err := range events {
		check(t, "an event", err, nil)
		got = append(got, fmt.Sprintf("%s %s %s %d %s", e.Kind, e.Topic, e.ID, e.Attempt, e.Error))
		if e.Number != int64(len(got)) || time.Since(e.At) > time.Minute || !strings.HasPrefix(string(e.Data), `{"kind":"`) {
			t.Errorf("told %+v", e)
		}
		if len(got) == 5 {
			break
		}
	}
	want := []string{"scheduled x a 0 ", "scheduled y b 0 ", "cancelled y b 0 ", "started x a 1 ", "retried x a 1 no stock"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("told %q, want %q", got, want)
	}
	for { // the server notices that the reader has gone
		s, err := c.Stats(ctx)
		if check(t, "Stats", err, nil); s.Events.Streams == 0 {
			break
		}
	}
	_, err = c.Events(ctx, client.EventFilter{Kinds: []client.EventKind{"odd"}})
	check(t, "a bad filter", err, client.ErrInvalid)
}

func TestEventsEndWithTheContext(t *testing.T) {
	c := served(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	events, err := c.Events(ctx, client.EventFilter{})
	check(t, "Events", err, nil)
	cancel(why)
	for e, err := range events {
		if check(t, "the end", err, why); e != nil {
			t.Errorf("told %+v", e)
		}
	}
	_, err = c.Events(ctx, client.EventFilter{})
	check(t, "Events", err, why)
}

// sse is the start of a stream, and what follows.
func sse(body io.Reader) *http.Response {
	r := answer(200, "", "Content-Type: text/event-stream; charset=utf-8")
	r.Body = io.NopCloser(body)
	return r
}

// Streams with every form that a server, or a proxy in its place, may send.
func TestReadingEvents(t *testing.T) {
	text := ": events\n\n:\n\nid: 1\nevent: started\ndata: {\"kind\":\"started\",\"id\":\"a\",\"attempt\":1,\"lateness\":\"1.5s\",\"news\":1}\n\n" +
		"retry: 10\nid: 8\nevent: lost\r\ndata:{\"kind\":\"lost\",\r\ndata:\"count\":7}\r\n\r\nid: 9\n\nevent: nothing\n\n" +
		"id: 10\ndata: {\"kind\":\"new\"}\n\ndata: {\"kind\":\"cut"
	c := over(t, client.Options{}, func(*http.Request, string) (*http.Response, error) { return sse(strings.NewReader(text)), nil })
	events, err := c.Events(t.Context(), client.EventFilter{})
	check(t, "Events", err, nil)
	var got []string
	for e, err := range events {
		if err != nil {
			check(t, "the end", err, client.ErrUnavailable)
			break
		}
		got = append(got, fmt.Sprint(e.Number, " ", e.Kind, " ", e.ID, " ", e.Attempt, " ", e.Lateness, " ", e.Count))
	}
	if want := "1 started a 1 1.5s 0|8 lost  0 0s 7|10 new  0 0s 0"; strings.Join(got, "|") != want {
		t.Errorf("told %q, want %s", got, want)
	}
	for name, bad := range map[string]struct {
		answer func() *http.Response
		opened error
		read   error
	}{
		"no events":  {func() *http.Response { return answer(200, "<html>", "Content-Type: text/html") }, client.ErrUnreachable, nil},
		"a redirect": {func() *http.Response { return answer(302, "", "Location: /elsewhere") }, nil, nil},
		"too long":   {func() *http.Response { return sse(strings.NewReader("data: " + strings.Repeat("x", 2<<20))) }, nil, client.ErrUnreachable},
		"broken":     {func() *http.Response { return sse(io.MultiReader(strings.NewReader(":\n"), badly{})) }, nil, client.ErrUnreachable},
		"nonsense":   {func() *http.Response { return sse(strings.NewReader("data: {\n\n")) }, nil, nil},
	} {
		c := over(t, client.Options{Retries: -1}, func(*http.Request, string) (*http.Response, error) { return bad.answer(), nil })
		events, err := c.Events(t.Context(), client.EventFilter{})
		if err != nil {
			if bad.opened != nil {
				check(t, name, err, bad.opened)
			} else if name != "a redirect" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		number := 0
		for e, err := range events {
			if number++; err == nil || e != nil || bad.read != nil && !errors.Is(err, bad.read) {
				t.Errorf("%s: told %+v, %v", name, e, err)
			}
		}
		if number != 1 || bad.opened != nil {
			t.Errorf("%s: it was opened and said %d things", name, number)
		}
	}
}

// badly reads a stream that breaks its form.
type badly struct{}

func (badly) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Opening a stream is repeated as other calls are. A server that never answers is given up in time,
// and so is a stream that falls silent.
func TestSilentStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		c := over(t, client.Options{}, func(r *http.Request, _ string) (*http.Response, error) {
			switch attempts++; attempts {
			case 1:
				return problem(503, "starting"), nil
			case 2:
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			body, server := io.Pipe()
			context.AfterFunc(r.Context(), func() { server.CloseWithError(r.Context().Err()) })
			go func() {
				for range 4 {
					time.Sleep(15 * time.Second) // fake
					_, _ = io.WriteString(server, ":\n\n")
				}
			}()
			return sse(body), nil
		})
		began := time.Now()
		events, err := c.Events(t.Context(), client.EventFilter{})
		check(t, "Events", err, nil)
		if took := time.Since(began); attempts != 3 || took < 10*time.Second || took > 15*time.Second {
			t.Errorf("opened after %d attempts and %v", attempts, took)
		}
		time.Sleep(time.Hour) // fake; the reader does not read yet
		began = time.Now()
		for _, err := range events {
			check(t, "the end", err, client.ErrUnreachable)
		}
		if took := time.Since(began); took != 90*time.Second {
			t.Errorf("given up after %v", took)
		}
	})
}
