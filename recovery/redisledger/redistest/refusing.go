package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A Refusal is how a proxy that knows only some commands refuses the others.
type Refusal string

// The ways to refuse a command. Any other one is the text of the error.
const (
	HangUp  Refusal = ""
	Unknown Refusal = "ERR unknown command"
)

// Refusing starts a proxy in front of a server that refuses some commands, as twemproxy does,
// and returns its URL.
func Refusing(t testing.TB, target string, how Refusal, commands ...string) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &refusing{target: target, how: how, commands: commands, conns: map[net.Conn]struct{}{}}
	p.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		p.closed = true
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return "redis://" + listener.Addr().String()
}

type refusing struct {
	target   string
	how      Refusal
	commands []string
	wg       sync.WaitGroup

	mu     sync.Mutex // guards everything below
	conns  map[net.Conn]struct{}
	closed bool
}

// enter makes sure that a connection is closed at the end of the test.
func (p *refusing) enter(c net.Conn) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
	if p.closed {
		_ = c.Close()
	}
	return func() {
		_ = c.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
	}
}

func (p *refusing) serve(client net.Conn) {
	defer p.enter(client)()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.enter(server)()
	requests, replies := bufio.NewReader(client), bufio.NewReader(server)
	for {
		request, err := readValue(requests)
		if err != nil {
			return
		}
		command := ""
		if parts := strings.SplitN(string(request), "\r\n", 4); len(parts) == 4 {
			command = strings.ToUpper(parts[2])
		}
		if slices.Contains(p.commands, command) {
			if p.how == HangUp {
				return
			}
			if _, err := fmt.Fprintf(client, "-%s '%s'\r\n", p.how, command); err != nil {
				return
			}
			continue
		}
		if _, err := server.Write(request); err != nil {
			return
		}
		if command == "SUBSCRIBE" { // from here on the server sends messages at any time
			p.wg.Go(func() { _, _ = io.Copy(server, requests) })
			_, _ = io.Copy(client, replies)
			return
		}
		reply, err := readValue(replies)
		if err != nil {
			return
		}
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

// readValue reads one value of the protocol, undecoded.
func readValue(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	switch line[0] {
	case '$':
		if n >= 0 {
			text := make([]byte, n+2)
			_, err = io.ReadFull(r, text)
			line = append(line, text...)
		}
	case '*':
		for range max(n, 0) {
			var part []byte
			if part, err = readValue(r); err != nil {
				break
			}
			line = append(line, part...)
		}
	}
	return line, err
}
