package cli

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/cli/internal/socketfile"
	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/metrics"
	"github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// unixScheme begins an address of redis-listen that is a socket file.
const unixScheme = "unix://"

// network returns the network of an address of redis-listen.
func network(listen string) string {
	if strings.HasPrefix(listen, unixScheme) {
		return "unix"
	}
	return "tcp"
}

// addressOf returns the address of redis-listen as package net has it.
func addressOf(listen string) string {
	path, _, err := socketFile(listen)
	if network(listen) == "tcp" || err != nil {
		return listen
	}
	return path
}

// socketFile reads unix:///path?mode=0660.
func socketFile(listen string) (path string, mode fs.FileMode, err error) {
	u, err := url.Parse(listen)
	if err != nil || u.Host != "" || u.Path == "" {
		return "", 0, errors.New("want host:port or unix:///path")
	}
	mode = 0o600
	for name, values := range u.Query() {
		n, err := strconv.ParseUint(values[0], 8, 32)
		if name != "mode" || len(values) != 1 || err != nil || n&^0o777 != 0 || n&0o600 != 0o600 {
			return "", 0, errors.New("want a mode from 0600 to 0777, as in unix:///path?mode=0660")
		}
		mode = fs.FileMode(n)
	}
	return u.Path, mode, nil
}

// checkRedisListen reads the address for clients of Redis: nil if it is wrong, a socket file, or
// not given.
func (s *settings) checkRedisListen(bad *faults) *net.TCPAddr {
	switch {
	case s.RedisListen == "":
	case network(s.RedisListen) == "unix":
		if _, _, err := socketFile(s.RedisListen); err != nil {
			bad.add("redis-listen: %w", err)
		}
	default:
		return s.address("redis-listen", s.RedisListen, bad)
	}
	return nil
}

// redisIsOpen reports whether other machines can reach the port for clients of Redis.
func (s *settings) redisIsOpen() bool {
	if s.RedisListen == "" || network(s.RedisListen) == "unix" {
		return false
	}
	addr, err := net.ResolveTCPAddr("tcp", s.RedisListen)
	return err == nil && !addr.IP.IsLoopback()
}

// connections returns how many connections all listeners may have at once.
func (s *settings) connections() int {
	if s.RedisListen == "" {
		return s.MaxConnections
	}
	return s.MaxConnections + s.RespMaxConnections
}

// redisURL returns how clients of Redis name an address of this server.
func (s *settings) redisURL(addr net.Addr) string {
	switch {
	case addr.Network() == "unix":
		return unixScheme + addr.String()
	case s.TLSCert != "":
		return "rediss://" + reachable(addr)
	}
	return "redis://" + reachable(addr)
}

// boundRedis returns how clients of Redis name the address that was bound for them, "" if none was.
func (s *settings) boundRedis(l *listeners) string {
	if l.redis == nil {
		return ""
	}
	return s.redisURL(l.redis.Addr())
}

// A redisPort serves the clients of Redis, if there is an address for them.
type redisPort struct {
	cfg     respapi.Config
	server  *respapi.Server // nil: there is no such address
	address string          // as clients name it
}

// redisPort checks the settings of the port. All faults are noted in bad.
func (s *settings) redisPort(bad *faults) *redisPort {
	p := &redisPort{cfg: respapi.Config{
		MaxConnections: s.RespMaxConnections,
		MaxCommand:     s.RespMaxCommand,
		MaxValue:       s.RespMaxValue,
		MaxAnswers:     s.MaxAnswers,
		MaxPersistent:  s.RespMaxPersistent,
		PastExpires:    s.RespPastExpiry == "expired",
		Notify:         &s.RespNotify,
		Flush:          s.RespFlush,
		Version:        buildVersion(),

		MaxConnectionsPerAddress: s.MaxConnectionsPerAddress,
	}}
	if len(s.RespTopics) > 0 {
		p.cfg.Topics = make(map[string]string, len(s.RespTopics))
	}
	for _, text := range s.RespTopics {
		at := strings.LastIndexByte(text, '=') // a topic has none
		if at < 0 {
			bad.add("resp-topics: want PREFIX=TOPIC, not %.100q", text)
			continue
		}
		prefix, topic := text[:at], text[at+1:]
		if _, twice := p.cfg.Topics[prefix]; twice {
			bad.add("resp-topics: the prefix %.100q is given twice", prefix)
		}
		p.cfg.Topics[prefix] = topic
	}
	for _, fault := range flattenedErrors(p.cfg.Validate()) {
		bad.include(fault)
	}
	return p
}

// shared is what all doors have together: who may come in, and what callers may take.
type shared struct {
	callers *edge.Callers
	waits   *edge.Waits
	answers *edge.Budget
}

// open makes the server, if there is an address that clients use. Its passwords are the tokens of
// the HTTP API.
func (p *redisPort) open(doors shared, address string, log *slog.Logger) (err error) {
	if address == "" {
		return nil
	}
	p.cfg.Log, p.address = log, address
	p.cfg.Callers, p.cfg.Waits, p.cfg.Answers = doors.callers, doors.waits, doors.answers
	p.server, err = respapi.New(p.cfg)
	return err
}

// serve serves clients until close.
func (p *redisPort) serve(l net.Listener, certificates *certificates) error {
	if certificates != nil && l.Addr().Network() == "tcp" {
		l = tlsListener{l, certificates}
	}
	return p.server.Serve(l)
}

// attach gives the server its scheduler. Until then it answers that it is loading.
// Expired events go to its subscribers from then on. Without a server, tasks of that way wait.
func (p *redisPort) attach(scheduler *tasks.Scheduler, way *respapi.Keyevent) error {
	if p.server == nil {
		return nil
	}
	way.Attach(p.server)
	return p.server.Attach(scheduler)
}

// figures returns the figures of the server for metrics, nil if there is none.
func (p *redisPort) figures() metrics.Port {
	if p.server == nil {
		return nil
	}
	return p.server
}

// state returns the state of the server for probes and the dashboard, nil if there is none.
func (p *redisPort) state() *httpapi.RedisPort {
	if p.server == nil {
		return nil
	}
	state := &httpapi.RedisPort{Serving: true, Address: p.address}
	if err := p.server.Accepting(); err != nil {
		state.Serving, state.Fault = false, err.Error()
	}
	state.Connections, _ = p.server.Connections()
	state.Subscribers, state.SubscribersCut = p.server.Subscribers()
	dropped := p.server.EventsDropped()
	state.EventsUnsent, state.EventsLost = dropped["unsent"], dropped["lost"]
	return state
}

// close ends the server. Commands have that long to end, then their connections are cut off.
func (p *redisPort) close(patience time.Duration) {
	if p.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = p.server.Close(ctx) // its only error is that of ctx
}

// listenRedis binds an address of redis-listen. Errors: those of socketfile.Listen and of package
// net.
func listenRedis(listen string) (net.Listener, error) {
	if network(listen) == "tcp" {
		return net.Listen("tcp", listen)
	}
	path, mode, err := socketFile(listen)
	if err != nil {
		return nil, err
	}
	return socketfile.Listen(path, mode)
}
