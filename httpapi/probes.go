package httpapi

import (
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
)

// Bounds of the server of probes. They are small, since each prober asks every few seconds.
const (
	probeConnections = 64
	// probeStreams bounds the concurrent requests of one HTTP/2 connection.
	probeStreams = 8
)

// probes is the state of the server that HealthServer returns.
type probes struct {
	engine  *gin.Engine
	scraped http.Handler // the metrics; set before Server.attached
}

// HealthServer returns a server of /healthz, /readyz and /metrics alone, and the listener that it
// is to serve, made of l. It keeps probes and Prometheus working while callers have taken all
// connections of the server that HTTPServer makes. It has 64 connections of its own. One address
// has at most half of them, and LimitConnections says which gives way. It also makes metrics for
// itself, so that slow readers of the other server do not use up the concurrent scrapes. Access and
// host names are checked as on the other server. Its Shutdown does not call Close.
func (s *Server) HealthServer(l net.Listener) (*http.Server, net.Listener) {
	h := s.httpServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(s.probes.engine, w, r) }))
	h.HTTP2.MaxConcurrentStreams = probeStreams
	limits := edge.ConnectionLimits{Most: probeConnections, PerAddress: min(s.perAddress, probeConnections/2), Log: s.log.With("listener", "health")}
	return h, s.connections(h, limits).Listener(l)
}

// probeRoutes builds the router of HealthServer from routes that the server has.
func (s *Server) probeRoutes() {
	s.probes.engine = s.newEngine()
	for _, r := range s.engine.Routes() {
		if r.Path == "/healthz" || r.Path == "/readyz" {
			s.probes.engine.Handle(r.Method, r.Path, r.HandlerFunc)
		}
	}
	if s.metrics != nil {
		s.probes.engine.GET(metricsPath, func(c *gin.Context) { s.probes.scraped.ServeHTTP(c.Writer, c.Request) })
	}
}
