package campaign

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// dial returns a client of the port for clients of Redis of a node. It repeats nothing by itself.
func dial(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Second, ReadTimeout: callWithin, PoolSize: 64,
	})
}

// command sends a command, records the answer, and returns what the answer means.
func (f *fleet) command(n *node, args ...any) (value any, s crash.Span, outcome crash.Outcome) {
	f.calls.Add(1)
	s = crash.Span{Node: n.name, Run: n.latest().n, Start: time.Now()}
	ctx, cancel := context.WithTimeout(context.Background(), 2*callWithin)
	defer cancel()
	value, err := n.port.Do(ctx, args...).Result()
	s.End = time.Now()
	f.note("%s redis %v -> %v %v", s, args, value, err)
	var told redis.Error
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return value, s, crash.Done
	case errors.As(err, &told):
		text := told.Error()
		code, _, _ := strings.Cut(text, " ")
		switch code {
		case "TRYAGAIN", "LOADING", "OOM":
			f.busy.Add(1)
			return nil, s, crash.Refused
		case "UNKNOWN", "ERR":
			return nil, s, crash.Unknown
		}
		f.wrong("strange answer", "%v answered %s", args, text)
		return nil, s, crash.Unknown
	}
	var failed *net.OpError
	if errors.As(err, &failed) && failed.Op == "dial" {
		return nil, s, crash.Refused // it was not sent
	}
	f.silent.Add(1)
	return nil, s, crash.Unknown
}

var keysFeature = feature{
	name: "keys", does: "several callers at a time use one key by SET, SET NX, GET, DEL, GETDEL, PEXPIRE, PERSIST and PTTL; its history is checked for linearizability",
	acts: []act{
		{4, func(c *caller, _ context.Context, r *run) { c.key(r, "set") }},
		{3, func(c *caller, _ context.Context, r *run) { c.key(r, "setnx") }},
		{6, func(c *caller, _ context.Context, r *run) { c.key(r, "get") }},
		{3, func(c *caller, _ context.Context, r *run) { c.key(r, "del") }},
		{3, func(c *caller, _ context.Context, r *run) { c.key(r, "getdel") }},
		{3, func(c *caller, _ context.Context, r *run) { c.key(r, "pexpire") }},
		{3, func(c *caller, _ context.Context, r *run) { c.key(r, "persist") }},
		{3, func(c *caller, _ context.Context, r *run) { c.key(r, "pttl") }},
	},
	judge: func(f *fleet) { f.grown.keys.judge(f, "keys") },
}

func (c *caller) key(r *run, verb string) {
	keys := c.fleet.grown.keys
	key := keys.pick(c.rng.IntN(1<<20), "k:")
	q := request{verb: verb, ttl: time.Hour + time.Duration(c.rng.IntN(1000))*time.Second}
	args := []any{verb, key}
	switch verb {
	case "set", "setnx":
		c.last++
		q.value = fmt.Sprintf("%d-%d", c.name, c.last)
		args = []any{"set", key, q.value}
		if c.rng.IntN(3) == 0 {
			q.ttl = 0
		} else {
			args = append(args, "px", q.ttl.Milliseconds())
		}
		if verb == "setnx" {
			args = append(args, "nx")
		}
	case "pexpire":
		args = append(args, q.ttl.Milliseconds())
	}
	value, s, outcome := c.fleet.command(r.node, args...)
	q.start, q.end, q.unknown = s.Start, s.End, outcome == crash.Unknown
	reads := verb == "get" || verb == "pttl"
	if outcome == crash.Refused || q.unknown && reads {
		return
	}
	switch v := value.(type) {
	case int64:
		q.n = v
	case string:
		q.got = v
		if verb == "setnx" { // OK, or nil
			q.n = 1
		}
	}
	keys.add(key, q)
}

// A timer is a key that expires soon.
type timer struct {
	set, earliest time.Time // when the SET began, and before when its key must not expire
	span          crash.Span
	accepted      bool
	deleted       time.Time // when a DEL was answered 1
	doubt         bool      // a DEL was not answered
	heard         int
	acked         time.Time // when an XACK was answered 1
}

// timers are the keys of a feature by name.
type timers struct {
	mu   sync.Mutex // guards what follows
	all  map[string]*timer
	live []string // that may be deleted
}

func newTimers() *timers { return &timers{all: map[string]*timer{}} }

// start sets a key that expires soon.
func (c *caller) start(t *timers, prefix string, r *run) {
	c.last++
	key := fmt.Sprintf("%s%d-%d", prefix, c.name, c.last)
	ttl := time.Duration(100+c.rng.IntN(4000)) * time.Millisecond
	now := time.Now()
	x := &timer{set: now, earliest: now.Add(ttl).Truncate(time.Millisecond), span: crash.Span{Start: now}}
	t.mu.Lock()
	t.all[key] = x
	t.live = append(t.live[max(0, len(t.live)-50):], key)
	t.mu.Unlock()
	_, s, outcome := c.fleet.command(r.node, "set", key, "v", "px", ttl.Milliseconds())
	t.mu.Lock()
	defer t.mu.Unlock()
	x.span, x.accepted = s, outcome == crash.Done
}

// remove deletes a key that may have expired.
func (c *caller) remove(t *timers, r *run) {
	t.mu.Lock()
	if len(t.live) == 0 {
		t.mu.Unlock()
		return
	}
	i := c.rng.IntN(len(t.live))
	key := t.live[i]
	t.live = append(t.live[:i:i], t.live[i+1:]...)
	t.mu.Unlock()
	value, s, outcome := c.fleet.command(r.node, "del", key)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch x := t.all[key]; {
	case outcome == crash.Unknown:
		x.doubt = true
	case outcome == crash.Done && value == int64(1) && s.End.Before(x.earliest):
		x.deleted = s.End
	case outcome == crash.Done && value == int64(1):
		x.doubt = true // its expiry may have been told meanwhile
	}
}

// hear judges the expiry of a key, which came by a request or a message between two instants.
func (t *timers) hear(f *fleet, feature, key string, from, now time.Time) *timer {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.all[key]
	if x == nil {
		f.wrong("strange event", "%s of a key that no caller has set: %q", feature, key)
		return nil
	}
	x.heard++
	at := crash.Span{Start: x.set, End: now}
	strays := f.deliver && f.disturbed(from, now, func(t crash.Trouble) bool {
		return t == crash.Stopped || t == crash.CutOff || t == crash.HalfOpen || t == crash.Slow
	})
	switch {
	case now.Before(x.earliest):
		f.broke(feature, at, "%s has expired at %s, early by %s", key, rig.Stamp(now), x.earliest.Sub(now))
	case !x.deleted.IsZero() && from.After(x.deleted) && !strays:
		f.broke(feature, at, "%s has expired at %s, and was deleted at %s", key, rig.Stamp(now), rig.Stamp(x.deleted))
	case !x.acked.IsZero() && from.After(x.acked) && !strays:
		f.broke(feature, at, "%s has expired again at %s, and was acknowledged at %s", key, rig.Stamp(now), rig.Stamp(x.acked))
	}
	return x
}

var eventsFeature = feature{
	name: "events", does: "keys that expire or are deleted, and subscribers at all nodes",
	excuses: "a subscriber may miss an event, or hear of it twice",
	acts: []act{
		{4, func(c *caller, _ context.Context, r *run) { c.start(c.fleet.grown.events, "e:", r) }},
		{2, func(c *caller, _ context.Context, r *run) { c.remove(c.fleet.grown.events, r) }},
	},
	begin: func(f *fleet) {
		for _, n := range f.nodes {
			f.watching.Go(func() { f.subscribe(n) })
		}
	},
}

// subscribe listens at a node until the fleet is closed.
func (f *fleet) subscribe(n *node) {
	for !f.stopping() {
		ctx, cancel := context.WithCancel(context.Background())
		events := n.port.Subscribe(ctx, "__keyevent@0__:expired")
		f.watching.Go(func() {
			select {
			case <-f.closing:
				cancel()
			case <-ctx.Done():
			}
		})
		for {
			m, err := events.ReceiveMessage(ctx)
			if err != nil {
				break
			}
			now := time.Now()
			f.note("redis event at %s: %s", n.name, m.Payload)
			f.use("events", now)
			if strings.HasPrefix(m.Payload, "e:") {
				// It may have been on its way for a while.
				f.grown.events.hear(f, "events", m.Payload, now.Add(-f.bench().Patience), now)
			}
		}
		_ = events.Close()
		cancel()
		f.rest(100 * time.Millisecond)
	}
}

// streamTopic is the topic of keys that are read by XREADGROUP.
const streamTopic, stream, readers = "streamed", "expired:streamed", "readers"

var streamsFeature = feature{
	name: "streams", does: "keys that expire or are deleted, XREADGROUP at any node, and XACK at another one",
	acts: []act{
		{4, func(c *caller, _ context.Context, r *run) { c.start(c.fleet.grown.streams, "s:", r) }},
		{2, func(c *caller, _ context.Context, r *run) { c.remove(c.fleet.grown.streams, r) }},
	},
	begin: func(f *fleet) {
		n := f.nodes[0]
		if !rig.Within(50*time.Millisecond, startWithin, func() bool {
			_, _, outcome := f.command(n, "xgroup", "create", stream, readers, "$", "mkstream")
			return outcome == crash.Done
		}) {
			f.t.Fatal("the group of the stream cannot be made")
		}
		f.set(streamTopic, "")
		for i, n := range f.nodes {
			f.watching.Go(func() { f.read(n, i) })
		}
	},
	left: func(f *fleet) string {
		if n := len(f.unread()); n > 0 {
			return fmt.Sprintf("%d entries of the stream are owed", n)
		}
		return ""
	},
	judge: func(f *fleet) {
		for _, x := range f.unread() {
			f.broke("streams", x.span, "no reader has got a key that was set at %s", x.span)
		}
	},
}

// unread lists what is owed: keys that were set and neither deleted nor acknowledged.
func (f *fleet) unread() (list []*timer) {
	t := f.grown.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.all {
		if x.accepted && x.deleted.IsZero() && !x.doubt && x.acked.IsZero() {
			if _, ok := f.bench().Forgotten(f.history, x.span); !ok {
				list = append(list, x)
			}
		}
	}
	return list
}

// read reads entries at a node, and acknowledges most of them at another one, until the fleet is
// closed. What it does not acknowledge comes again when its lease is over.
func (f *fleet) read(n *node, i int) {
	for turn := 0; !f.stopping(); turn++ {
		value, s, outcome := f.command(n, "xreadgroup", "group", readers, "reader"+strconv.Itoa(i), "count", 100, "block", 200, "streams", stream, ">")
		if outcome != crash.Done {
			f.rest(100 * time.Millisecond)
			continue
		}
		f.use("streams", s.Start)
		for id, key := range entriesOf(value) {
			x := f.grown.streams.hear(f, "streams", key, s.Start, s.End)
			if x == nil || turn%20 == 19 {
				continue
			}
			f.acknowledge(f.nodes[(i+turn)%len(f.nodes)], id, x)
		}
	}
}

// acknowledge repeats an XACK until it has a definite answer.
func (f *fleet) acknowledge(n *node, id string, x *timer) {
	for range 6 {
		value, s, outcome := f.command(n, "xack", stream, readers, id)
		f.use("streams", s.Start)
		if outcome == crash.Done {
			f.grown.streams.mu.Lock()
			defer f.grown.streams.mu.Unlock()
			if value == int64(1) && x.acked.IsZero() {
				x.acked = s.End
			}
			return
		}
		if outcome == crash.Unknown {
			f.grown.streams.mu.Lock()
			x.doubt = true // it may be acknowledged
			f.grown.streams.mu.Unlock()
		}
		f.rest(100 * time.Millisecond)
	}
}

// entriesOf are the keys of an answer to XREADGROUP by the ids of their entries.
func entriesOf(value any) map[string]string {
	entries := map[string]string{}
	list := func(v any, i int) any {
		if l, _ := v.([]any); i < len(l) {
			return l[i]
		}
		return nil
	}
	all, _ := list(list(value, 0), 1).([]any)
	for _, e := range all {
		id, _ := list(e, 0).(string)
		fields, _ := list(e, 1).([]any)
		for i := 0; i+1 < len(fields); i += 2 {
			if fields[i] == "key" {
				entries[id], _ = fields[i+1].(string)
			}
		}
	}
	return entries
}
