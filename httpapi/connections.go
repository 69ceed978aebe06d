package httpapi

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"github.com/lapsehq/lapse/edge"
)

// LimitConnections bounds the connections of a server that HTTPServer has made, by the rules of
// edge.Connections. Call it before the server starts, and serve the listener that it returns.
//
// A connection is unfinished while its request is incomplete. One address has at most
// Config.MaxConnectionsPerAddress connections. Further ones are closed.
func (s *Server) LimitConnections(server *http.Server, l net.Listener, limit int) net.Listener {
	perSource := s.perSource
	if perSource == 0 {
		perSource = max(1, limit/2)
	}
	return s.connections(server, limit, s.log).Listener(s.addresses(perSource, s.log).Listener(l))
}

// connections returns a count of the connections of a server, and has the server tell it what they
// do.
func (s *Server) connections(server *http.Server, limit int, log *slog.Logger) *edge.Connections {
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		switch known := edge.ConnOf(conn); state {
		case http.StateActive:
			known.Begin()
		case http.StateIdle:
			known.Rest()
		case http.StateHijacked:
			known.Arrived()
		case http.StateNew, http.StateClosed: // Connections and Conn know that themselves
		}
	}
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if known := edge.ConnOf(conn); known != nil {
			return context.WithValue(ctx, connKey{}, known)
		}
		return ctx
	}
	return edge.NewConnections(edge.ConnectionLimits{Most: limit, Log: log, Yields: &s.yields})
}

// connKey is where the context of a request has its *edge.Conn.
type connKey struct{}

// hasArrived notes that a request is complete.
func hasArrived(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*edge.Conn); ok {
		c.Arrived()
	}
}

// addresses returns a count that allows each address so many connections.
func (s *Server) addresses(limit int, log *slog.Logger) *edge.Addresses {
	return edge.NewAddresses(limit, log, func() { s.refusals[refusedAddress].Add(1) })
}

// LimitAddresses bounds the connections that one address has at a listener that is not of HTTP, by
// the rules of LimitConnections. Further ones are closed.
func (s *Server) LimitAddresses(l net.Listener, limit int) net.Listener {
	return s.addresses(limit, s.log).Listener(l)
}
