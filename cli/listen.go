package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/httpapi"
)

// listeners are the addresses that the server has bound.
type listeners struct {
	all    net.Listener
	health net.Listener // for probes; nil: there is none
}

// An errHealthListen is why the address for probes cannot be bound.
type errHealthListen struct{ error }

func (e errHealthListen) Error() string { return "health-listen: " + e.error.Error() }
func (e errHealthListen) Unwrap() error { return e.error }

// listen binds the addresses; that for probes may be nil.
func listen(addr, health *net.TCPAddr) (*listeners, error) {
	all, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &listeners{all: all}
	if health == nil {
		return l, nil
	}
	if l.health, err = net.ListenTCP("tcp", health); err != nil {
		return nil, errors.Join(errHealthListen{err}, all.Close())
	}
	return l, nil
}

func (l *listeners) close() error {
	if l.health == nil {
		return l.all.Close()
	}
	return errors.Join(l.all.Close(), l.health.Close())
}

// servers are the servers of the listeners.
type servers struct {
	all    *http.Server
	health *http.Server // nil: there is none
	failed chan error   // why one of them has ended
}

// serve begins to serve, the probes first.
func (l *listeners) serve(api *httpapi.Server, certificates *certificates, maxConnections int) *servers {
	s := &servers{all: api.HTTPServer(), failed: make(chan error, 2)}
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
	go func() { s.failed <- certificates.serve(s.all, limited) }()
	return s
}

// end ends the server of all callers. Requests have that long to end.
func (s *servers) end(patience time.Duration) error { return end(s.all, patience) }

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
