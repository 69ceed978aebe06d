//go:build fault

package respclients

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// hostile is the name and the text of the token of the hostile caller.
const hostile = "hostile"

const (
	strangers    = 1500 // connections, to the ports of each node
	waits        = 5000 // reads that wait, as many as one token may have
	dueAtOnce    = 60_000
	largeValue   = 1 << 20
	largePattern = 1 << 20
)

// A hostility is what the hostile caller does to a fleet. Its connections come from addresses of
// its own.
type hostility struct {
	n      *neighbourhood
	stop   context.CancelFunc
	ctx    context.Context
	at     atomic.Int64 // the next node
	open   atomic.Int64 // connections that have its token
	waits  atomic.Int64
	tried  atomic.Int64 // tokens
	asked  atomic.Int64 // commands with patterns, and large answers
	denied atomic.Int64 // connections that the nodes have closed at once
	due    atomic.Int64 // tasks
}

func (h *hostility) String() string {
	return fmt.Sprintf("%d reads that wait, %d guesses at tokens, %d large patterns and answers, %d tasks due at once, %d connections refused; %d connections are open",
		h.waits.Load(), h.tried.Load(), h.asked.Load(), h.due.Load(), h.denied.Load(), h.open.Load())
}

// attack begins.
func attack(n *neighbourhood) *hostility {
	h := &hostility{n: n}
	h.ctx, h.stop = context.WithCancel(n.t.Context())
	var working sync.WaitGroup
	n.t.Cleanup(func() { h.stop(); working.Wait() })
	c := n.dial("admin", n.nodes[2].redis)
	defer c.Close()
	if err := c.XGroupCreateMkStream(n.t.Context(), "expired:hostile", "g", "$").Err(); err != nil {
		n.t.Fatal(err)
	}
	for range waits {
		working.Go(h.wait)
	}
	for range 4 {
		working.Go(h.subscribe)
		working.Go(func() { h.repeat(h.largeAnswers) })
		working.Go(func() { h.repeat(h.largePatterns) })
		working.Go(func() { h.repeat(h.guess) })
	}
	for range strangers {
		working.Go(func() { h.repeat(h.beStranger) })
	}
	working.Go(h.scheduleMany)
	return h
}

// inForce waits until the attack is under way in all its parts. Without it the neighbours would
// prove nothing.
func (h *hostility) inForce() {
	h.n.t.Helper()
	wait(h.n.t, time.Minute, "start of the attack", func() bool {
		return h.waits.Load() >= waits/2 && h.tried.Load() > 0 && h.asked.Load() > 0 && h.due.Load() == dueAtOnce
	})
}

// repeat does something again and again. A failure is no reason to stop.
func (h *hostility) repeat(f func()) {
	for h.ctx.Err() == nil {
		f()
		select {
		case <-time.After(20 * time.Millisecond):
		case <-h.ctx.Done():
		}
	}
}

// dial connects to a node from an address of the hostile caller; nil if it cannot.
func (h *hostility) dial(addr string) net.Conn {
	d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+rand.IntN(3)))}}
	nc, err := d.DialContext(h.ctx, "tcp", addr)
	if err != nil {
		h.denied.Add(1)
		return nil
	}
	context.AfterFunc(h.ctx, func() { nc.Close() })
	return nc
}

// next returns one node after another.
func (h *hostility) next() *node { return h.n.nodes[int(h.at.Add(1))%len(h.n.nodes)] }

// command returns a command as clients write it.
func command(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

// send signs in at a node, sends commands, and reads what comes back, slowly, until the node closes
// the connection or takes the token's rights away, or for a while if there is one.
func (h *hostility) send(addr string, while time.Duration, commands ...string) {
	nc := h.dial(addr)
	if nc == nil {
		return
	}
	defer nc.Close()
	if while > 0 {
		_ = nc.SetDeadline(time.Now().Add(while))
	}
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	in := bufio.NewReaderSize(&slowReader{nc, pace.C}, 4096)
	_, _ = io.WriteString(nc, command("AUTH", hostile))
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "+OK") {
		return
	}
	h.open.Add(1)
	defer h.open.Add(-1)
	go func() { _, _ = io.WriteString(nc, strings.Join(commands, "")) }()
	if while == 0 {
		h.waits.Add(1)
	} else {
		h.asked.Add(1)
	}
	for line, err := in.ReadString('\n'); err == nil && !strings.HasPrefix(line, "-NOAUTH"); {
		line, err = in.ReadString('\n')
	}
}

// A slowReader reads a little at a time.
type slowReader struct {
	io.Reader
	pace <-chan time.Time
}

func (r *slowReader) Read(p []byte) (int, error) {
	<-r.pace
	return r.Reader.Read(p)
}

// subscribe is a subscriber, which is cut off when its token is withdrawn.
func (h *hostility) subscribe() {
	h.send(h.n.nodes[1].redis, 0, command("PSUBSCRIBE", "*"))
}

// wait is a read that waits, at the last node.
func (h *hostility) wait() {
	h.send(h.n.nodes[2].redis, 0, command("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "expired:hostile", ">"))
}

// largeAnswers asks for large answers in a transaction, and hardly reads them.
func (h *hostility) largeAnswers() {
	all := []string{command("SET", "hostile:large", strings.Repeat("x", largeValue), "EX", "1000"), command("MULTI")}
	for range 100 {
		all = append(all, command("GET", "hostile:large"))
	}
	h.send(h.next().redis, 3*time.Second, append(all, command("EXEC"))...)
}

// largePatterns uses patterns that are large, or match slowly.
func (h *hostility) largePatterns() {
	long, slow := "*["+strings.Repeat("a", largePattern)+"]", strings.Repeat("*a", 2000)+"b"
	var all []string
	for _, p := range []string{long, slow} {
		all = append(all, command("KEYS", p), command("SCAN", "0", "MATCH", p, "COUNT", "1000"), command("PUBSUB", "CHANNELS", p), command("PSUBSCRIBE", p))
	}
	h.send(h.next().redis, time.Second, all...)
}

// guess tries a token, by both protocols.
func (h *hostility) guess() {
	h.tried.Add(2)
	text := fmt.Sprintf("%016x", rand.Uint64())
	if nc := h.dial(h.next().redis); nc != nil {
		_ = nc.SetDeadline(time.Now().Add(2 * time.Second))
		_, _ = io.WriteString(nc, command("AUTH", text))
		_, _ = io.Copy(io.Discard, nc)
		nc.Close()
	}
	if nc := h.dial(h.next().http); nc != nil {
		_ = nc.SetDeadline(time.Now().Add(2 * time.Second))
		_, _ = fmt.Fprintf(nc, "GET /v1/tasks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n", text)
		_, _ = io.Copy(io.Discard, nc)
		nc.Close()
	}
}

// beStranger is a connection without a token, which has begun a command or a request.
func (h *hostility) beStranger() {
	addr, text := h.next().redis, "*3\r\n$3\r\nSET\r\n$5\r\nsto"
	if rand.IntN(2) == 0 {
		addr, text = h.next().http, "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\n{"
	}
	if nc := h.dial(addr); nc != nil {
		_, _ = io.WriteString(nc, text)
		_, _ = io.Copy(io.Discard, nc)
		nc.Close()
	}
}

// scheduleMany schedules tasks of its topic that are all due at one moment.
func (h *hostility) scheduleMany() {
	due := time.Now().Add(10 * time.Second).UTC().Format(time.RFC3339)
	for h.due.Load() < dueAtOnce && h.ctx.Err() == nil {
		body := "[" + strings.TrimSuffix(strings.Repeat(`{"topic":"hostile.keys","due_at":"`+due+`"},`, 5000), ",") + "]"
		req, err := http.NewRequestWithContext(h.ctx, http.MethodPost, "http://"+h.next().http+"/v1/tasks/batch", strings.NewReader(body))
		if err != nil {
			h.n.t.Error(err)
			return
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+hostile)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				h.due.Add(5000)
			}
		}
	}
}
