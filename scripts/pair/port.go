package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

const (
	clients  = 50
	commands = 5_000  // one by one
	piped    = 20_000 // 16 at a time
	expiring = 50_000
)

// overPort measures the port for clients of Redis: commands one by one and 16 at a time, and the
// events of keys that expire.
func overPort(ctx context.Context, l life) ([]measure.Sample, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	v, err := serve(ctx, l, "--redis-listen", address)
	if err != nil {
		return nil, err
	}
	defer v.server.stop()
	if err := v.server.await(ctx, func() error { return dial(address) }); err != nil {
		return nil, err
	}
	value := fmt.Sprintf("%0200d", 0)
	for _, part := range []struct {
		name    string
		n, pipe int
	}{{"p1", commands, 1}, {"p16", piped, 16}} {
		key := func(i int) string { return fmt.Sprintf("%s:%d", part.name, i) }
		get := func(i int) []string { return []string{"GET", key(i)} }
		set := func(round int) (int, error) { // with new keys
			return part.n, load(ctx, address, part.n, part.pipe, func(i int) []string {
				return []string{"SET", key(round*part.n + i), value, "PX", "86400000"}
			})
		}
		if err := v.measured(measure.Path{Name: "set/" + part.name, Rounds: 8, Round: set}); err != nil {
			return v.samples, err
		}
		if path := "get/" + part.name; v.chosen.MatchString(path) {
			if _, err := set(0); err != nil {
				return v.samples, err
			}
			if err := v.measured(measure.Path{Name: path, Rounds: 8, Round: func(int) (int, error) {
				return part.n, load(ctx, address, part.n, part.pipe, get)
			}}); err != nil {
				return v.samples, err
			}
		}
	}
	return v.samples, v.events(ctx, address)
}

// events measures from the instant at which keys expire until a subscriber has all of their events.
func (v *served) events(ctx context.Context, address string) error {
	var subscriber net.Conn
	defer func() {
		if subscriber != nil {
			_ = subscriber.Close()
		}
	}()
	return v.measured(measure.Path{Name: "events/port", Rounds: 1, Prepare: func() (err error) {
		subscriber, err = subscribed(ctx, address)
		return err
	}, Round: func(int) (int, error) { return expiring, count(subscriber) }})
}

// subscribed sets keys, and returns a subscriber to their events a moment before they expire.
func subscribed(ctx context.Context, address string) (net.Conn, error) {
	due := time.Now().Add(2 * time.Second)
	at := fmt.Sprint(due.UnixMilli())
	subscriber, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = subscriber.SetDeadline(time.Now()) })
	if _, err := subscriber.Write(resp("SUBSCRIBE", "__keyevent@0__:expired")); err != nil {
		return subscriber, err
	}
	if err := load(ctx, address, expiring, 16, func(i int) []string {
		return []string{"SET", fmt.Sprintf("event:%d", i), "", "PXAT", at}
	}); err != nil {
		return subscriber, err
	}
	rest := time.Until(due) - moment
	if rest < 0 {
		return subscriber, fmt.Errorf("%d keys cannot be set in time", expiring)
	}
	time.Sleep(rest)
	return subscriber, nil
}

// count reads until all events have come.
func count(subscriber net.Conn) error {
	name := []byte("event:")
	events, buffer, kept := 0, make([]byte, 64<<10), 0
	for events < expiring {
		n, err := subscriber.Read(buffer[kept:])
		if err != nil {
			return fmt.Errorf("after %d events: %w", events, err)
		}
		read := buffer[:kept+n]
		events += bytes.Count(read, name)
		// A name that is cut counts with the next read, and one that is whole counts once.
		if last := bytes.LastIndex(read, name); last >= 0 {
			read = read[last+len(name):]
		}
		kept = copy(buffer, read[max(0, len(read)-len(name)+1):])
	}
	return nil
}

// load sends n commands by clients at the same time, and reads the answers.
func load(ctx context.Context, address string, n, pipe int, command func(i int) []string) error {
	group, ctx := errgroup.WithContext(ctx)
	for c := range clients {
		group.Go(func() error {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
			defer stop()
			answers := bufio.NewReader(conn)
			for from := n * c / clients; from < n*(c+1)/clients; from += pipe {
				to := min(from+pipe, n*(c+1)/clients)
				var text []byte
				for i := from; i < to; i++ {
					text = append(text, resp(command(i)...)...)
				}
				if _, err := conn.Write(text); err != nil {
					return err
				}
				for range to - from {
					if err := answer(answers); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// resp is a command as clients of Redis send it.
func resp(words ...string) []byte {
	text := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		text = fmt.Appendf(text, "$%d\r\n%s\r\n", len(w), w)
	}
	return text
}

// answer reads the answer of a SET or a GET.
func answer(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	var size int
	switch line[0] {
	case '+':
		return nil
	case '$':
		if _, err := fmt.Sscanf(string(line), "$%d", &size); err == nil && size >= 0 {
			_, err = io.CopyN(io.Discard, r, int64(size)+2)
			return err
		}
	}
	return fmt.Errorf("answered %q", line)
}
