package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
)

// Config sets a server up.
type Config struct {
	// Scheduler does all the work. Required. The server does not close it.
	Scheduler *tasks.Scheduler
	// Log receives what an operator should see; every request at level debug.
	// Default slog.Default().
	Log *slog.Logger
	// MaxBody bounds a request's body, in bytes, 1 KiB to 1 GiB. Default 16
	// MiB. All bodies that are in memory at the same moment may have 16 times as
	// much together.
	MaxBody int64
	// Version of the program, shown in the OpenAPI document and on the
	// dashboard. Default "dev".
	Version string
	// Metrics answers GET /metrics. Default: there is no such route.
	Metrics http.Handler
}

// Server is the handler of all routes. It is safe for concurrent use.
type Server struct {
	log       *slog.Logger
	scheduler *tasks.Scheduler
	hot       accepter
	bodies    budget
	maxBody   int64
	version   string
	started   time.Time

	engine *gin.Engine
	guard  *http.CrossOriginProtection
	spec   []byte // the OpenAPI document
	docs   []byte // the page that lists the routes

	ending context.Context // done once Close was called
	end    context.CancelFunc
}

// An accepter is what the two hot calls need of the scheduler. Benchmarks put one
// in its place that does nothing, to measure what HTTP alone costs.
type accepter interface {
	Schedule(context.Context, tasks.Request) (tasks.Task, error)
	ScheduleBatch(context.Context, []tasks.Request) ([]tasks.Result, error)
}

// New makes a server. The error says what is wrong with cfg.
func New(cfg Config) (*Server, error) {
	if cfg.Scheduler == nil {
		return nil, errors.New("httpapi: Config.Scheduler is required")
	}
	return newServer(cfg, cfg.Scheduler)
}

func newServer(cfg Config, hot accepter) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 16 << 20
	}
	if cfg.MaxBody < 1<<10 || cfg.MaxBody > 1<<30 {
		return nil, errors.New("httpapi: Config.MaxBody must be from 1 KiB to 1 GiB")
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	s := &Server{
		log: cfg.Log, scheduler: cfg.Scheduler, hot: hot,
		bodies:  budget{limit: bodiesAhead * cfg.MaxBody},
		maxBody: cfg.MaxBody,
		version: cfg.Version,
		started: time.Now(),
		guard:   http.NewCrossOriginProtection(),
	}
	s.ending, s.end = context.WithCancel(context.Background())
	return s, s.routes(cfg.Metrics)
}

// Close ends the long-polls that are waiting: they are answered at once with no
// tasks. Afterwards reserves do not wait, and /readyz says 503 so that a load
// balancer looks elsewhere. It may be called more than once.
func (s *Server) Close() { s.end() }

// Limits of the server that HTTPServer makes.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
	// writeTimeout counts from the end of the request's header. So it holds the
	// time for the body, the longest long-poll, and time to write the answer.
	writeTimeout = bodyTimeout + tasks.MaxWait + 30*time.Second
)

// HTTPServer returns a server for this handler with limits on everything that a
// caller can drag out. Its Shutdown calls Close. There is no ReadTimeout: that
// would end a long-poll, so reading a body has a limit of its own.
func (s *Server) HTTPServer() *http.Server {
	h := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	h.RegisterOnShutdown(s.Close)
	return h
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		// A HEAD is answered like a GET; net/http leaves the body out.
		get := *r
		get.Method = http.MethodGet
		r = &get
	}
	s.engine.ServeHTTP(w, r)
}
