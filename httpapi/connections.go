package httpapi

import (
	"context"
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
	return s.connections(server, edge.ConnectionLimits{Most: limit, PerAddress: s.perAddress, Log: s.log}).Listener(l)
}

// connections returns a count of the connections of a server, and has the server tell it what they
// do.
func (s *Server) connections(server *http.Server, limits edge.ConnectionLimits) *edge.Connections {
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
	limits.Closed = &s.closed
	return edge.NewConnections(limits)
}

// connKey is where the context of a request has its *edge.Conn.
type connKey struct{}

// hasArrived notes that a request is complete.
func hasArrived(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*edge.Conn); ok {
		c.Arrived()
	}
}
