package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/httpapi"
)

// listeners are the addresses that the server has bound.
type listeners struct {
	all    net.Listener
	health net.Listener // for probes; nil: there is none
	redis  net.Listener // for clients of Redis; nil: there is none
}

// An errListen is why the address of a setting cannot be bound.
type errListen struct {
	error
	setting string
}

func (e errListen) Error() string { return e.setting + ": " + e.error.Error() }
func (e errListen) Unwrap() error { return e.error }

// listen binds the addresses; that for probes may be nil, and that for clients of Redis empty. For
// the settings orFree, any port will do if that of the address is taken.
func listen(addr, health *net.TCPAddr, redis string, orFree []string) (*listeners, error) {
	all, err := net.Listen("tcp", addr.String())
	if slices.Contains(orFree, "listen") && errors.Is(err, syscall.EADDRINUSE) {
		all, err = net.Listen("tcp", anyPort(addr.String()))
	}
	if err != nil {
		return nil, err
	}
	l := &listeners{all: all}
	if health != nil {
		if l.health, err = net.ListenTCP("tcp", health); err != nil {
			l.health = nil
			return nil, errors.Join(errListen{err, "health-listen"}, l.close())
		}
	}
	if redis != "" {
		l.redis, err = listenRedis(redis)
		if slices.Contains(orFree, "redis-listen") && errors.Is(err, syscall.EADDRINUSE) {
			l.redis, err = listenRedis(anyPort(redis))
		}
		if err != nil {
			return nil, errors.Join(errListen{err, "redis-listen"}, l.close())
		}
	}
	return l, nil
}

// anyPort is an address of the same host whose port is to be chosen.
func anyPort(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return net.JoinHostPort(host, "0")
}

func (l *listeners) close() error {
	err := l.all.Close()
	if l.health != nil {
		err = errors.Join(err, l.health.Close())
	}
	if l.redis != nil {
		err = errors.Join(err, l.redis.Close())
	}
	return err
}

// servers are the servers of the listeners.
type servers struct {
	all    *http.Server
	health *http.Server // nil: there is none
	redis  *redisPort
	failed chan error // why one of them has ended
}

// serve begins to serve, the probes first.
func (l *listeners) serve(api *httpapi.Server, redis *redisPort, certificates *certificates, maxConnections int) *servers {
	s := &servers{all: api.HTTPServer(), redis: redis, failed: make(chan error, 3)}
	limited := api.LimitConnections(s.all, l.all, maxConnections)
	if l.health != nil {
		var few net.Listener
		s.health, few = api.HealthServer(l.health)
		go func() {
			if err := certificates.serve(s.health, few); !errors.Is(err, http.ErrServerClosed) {
				s.failed <- fmt.Errorf("health-listen: %w", err)
			}
		}()
	}
	if l.redis != nil {
		go func() {
			if err := redis.serve(l.redis, certificates); err != nil {
				s.failed <- fmt.Errorf("redis-listen: %w", err)
			}
		}()
	}
	go func() { s.failed <- certificates.serve(s.all, limited) }()
	return s
}

// end ends the servers of all callers. Requests and commands have that long to end.
func (s *servers) end(patience time.Duration) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.redis.close(patience)
	}()
	err := end(s.all, patience)
	<-ended
	return err
}

// endHealth ends the server of probes.
func (s *servers) endHealth() error {
	if s.health == nil {
		return nil
	}
	return end(s.health, probePatience)
}

// probePatience is how long a probe has that is under way when everything else has ended.
const probePatience = 250 * time.Millisecond

func end(server *http.Server, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch err := server.Shutdown(ctx); {
	case errors.Is(err, context.DeadlineExceeded):
		server.Close() // this cuts off callers that are still sending, or have sent nothing
	case err != nil:
		return fmt.Errorf("stopping the HTTP server: %w", err)
	}
	return nil
}
