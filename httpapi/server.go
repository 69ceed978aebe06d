package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
)

// Config configures a server.
type Config struct {
	// Scheduler does all the work. The server does not close it. It may come
	// later, see Attach.
	Scheduler *tasks.Scheduler
	// Starting returns, while there is no scheduler yet, the state of what the server waits for.
	// Default: nothing is known.
	Starting func() recovery.Health
	// Log receives messages for the operator; every request at level debug. Default slog.Default().
	Log *slog.Logger
	// MaxBody bounds a request's body, in bytes, 1 KiB to 1 GiB. Default 16 MiB. All bodies in
	// memory at the same moment may have 16 times as many bytes together, those of one token half
	// of that.
	MaxBody int64
	// MaxPayload bounds the payload of a task that a call schedules or changes, in bytes. Default:
	// that of the scheduler, which may be larger, since other doors are.
	MaxPayload int
	// MaxAnswers bounds the bytes of all answers that are in memory at the same moment because
	// their callers have not read them yet, 8 MiB to 64 GiB. One token may take half of it. Lists
	// may take half of it, those of one token a quarter, or one list. Past it the answer is 429.
	// Default 64 MiB.
	MaxAnswers int64
	// Answers is the budget of MaxAnswers, where other doors take from the same. Default: one of
	// its own, of MaxAnswers bytes.
	Answers *edge.Budget
	// Waits bounds the reserves that wait for tasks at the same moment, together with what waits at
	// other doors. Past it a reserve that finds no ready task is answered 429. Default: a count of
	// its own, with the usual bounds.
	Waits *edge.Waits
	// MaxConnectionsPerAddress bounds the connections that LimitConnections lets one address have,
	// or one /64 of IPv6. Further ones are closed at once. The loopback address has no bound: all
	// callers on the machine share it, and so do those of a proxy there. Default: half of all
	// connections.
	MaxConnectionsPerAddress int
	// AllowedHosts are names under which callers without TLS reach a server without tokens, or
	// *.domain for all names below one, or * for every name. Always allowed are addresses,
	// localhost and, unless the connection comes over the loopback address, names that are not in
	// the public DNS: without a dot, or in .local, .internal or .svc. All other names are refused,
	// since a page of another site can give its name this server's address (DNS rebinding). Nil:
	// the embedding program controls access, and only browsers on the machine are checked.
	AllowedHosts []string
	// Version of the program, shown in the OpenAPI document and on the
	// dashboard. Default "dev".
	Version string
	// Prefix is the path below which callers reach the server, such as /lapse. The program passes
	// requests on with the prefix, or without it where http.StripPrefix or a proxy takes it away.
	// Default: none, the server is at the root of its host.
	Prefix string
	// Metrics makes the handler of GET /metrics, one for each server that HTTPServer and
	// HealthServer make. Default: there is no such route.
	Metrics func(*tasks.Scheduler) http.Handler
	// Redis returns the state of the port for clients of Redis that the program has opened, nil if
	// there is none. Default: there is none.
	Redis func() *RedisPort
	// BackupDir is the directory below which POST /v1/backup makes backups of an embedded ledger.
	// It must exist. Default: no backups are made.
	BackupDir string
	// Callers are those that have tokens. Default: every caller may use every route.
	Callers *edge.Callers
}

// Bounds of Config.MaxBody and Config.MaxAnswers.
const (
	LeastMaxBody    = 1 << 10
	MostMaxBody     = 1 << 30
	LeastMaxAnswers = 8 << 20
	MostMaxAnswers  = 64 << 30
)

// Server is the handler of all routes. It is safe for concurrent use.
type Server struct {
	log       *slog.Logger
	attached  atomic.Bool  // the fields below are set, and do not change any more
	scheduler tasks.Admin  // does all the work
	creator   taskCreator  // the same scheduler
	scraped   http.Handler // its metrics
	metrics   func(*tasks.Scheduler) http.Handler
	starting  func() recovery.Health
	redis     func() *RedisPort // nil: there is none
	version   string
	prefix    prefix
	started   time.Time
	backups   string // Config.BackupDir

	limits
	access
	engine  *gin.Engine
	packing *packing
	shared  sharing
	probes  probes
	times   times

	streams *edge.Places // open streams of events

	manyTopics  atomic.Bool // the last stats left topics out
	statsRounds rounds

	spec []byte // the OpenAPI document
	docs []byte // the page that lists the routes

	ending context.Context // done once Close is called
	end    context.CancelFunc
}

// limits bound what all callers together may use of the server.
type limits struct {
	bodies     *edge.Budget
	answers    *edge.Budget  // of answers that are not read yet
	lists      *edge.Budget  // of lists and exports among them
	pages      chan struct{} // holds a token for each page of a list that is being made
	waits      *edge.Waits
	refusals   refusals
	closed     edge.Closed
	maxBody    int64
	maxPayload payloadLimit
	perAddress int // see Config.MaxConnectionsPerAddress
}

// A taskCreator is what the two most frequent calls need of the scheduler. Benchmarks replace it by
// one that does nothing, to measure the cost of HTTP alone.
type taskCreator interface {
	Schedule(context.Context, tasks.Request) (tasks.Task, error)
	ScheduleBatch(context.Context, []tasks.Request) ([]tasks.Result, error)
}

// New makes a server. Its error says what is wrong with cfg.
func New(cfg Config) (*Server, error) {
	s, err := newServer(cfg)
	if err == nil && cfg.Scheduler != nil {
		s.Attach(cfg.Scheduler)
	}
	return s, err
}

// Attach gives the server its scheduler, once, if Config had none. Until then /healthz, /readyz,
// /docs, /openapi.json and /problems are answered, and all other routes with 503. Callers and
// probes can so learn that the server waits for its ledger.
func (s *Server) Attach(scheduler *tasks.Scheduler) {
	s.scheduler = scheduler.Admin()
	if s.metrics != nil {
		s.scraped, s.probes.scraped = s.metrics(scheduler), s.metrics(scheduler)
	}
	s.attach(scheduler)
}

func (s *Server) attach(creator taskCreator) {
	s.creator = creator
	s.attached.Store(true)
}

func newServer(cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 16 << 20
	}
	if cfg.MaxBody < LeastMaxBody || cfg.MaxBody > MostMaxBody {
		return nil, errors.New("httpapi: Config.MaxBody must be from 1 KiB to 1 GiB")
	}
	if cfg.MaxAnswers == 0 {
		cfg.MaxAnswers = 64 << 20
	}
	if cfg.MaxAnswers < LeastMaxAnswers || cfg.MaxAnswers > MostMaxAnswers {
		return nil, errors.New("httpapi: Config.MaxAnswers must be from 8 MiB to 64 GiB")
	}
	if cfg.Answers == nil {
		cfg.Answers = edge.NewBudget(cfg.MaxAnswers)
	}
	if cfg.Waits == nil {
		cfg.Waits = edge.NewWaits(0, 0)
	}
	if cfg.MaxConnectionsPerAddress < 0 {
		return nil, errors.New("httpapi: Config.MaxConnectionsPerAddress must not be negative")
	}
	for _, h := range cfg.AllowedHosts {
		if wrong := CheckHost(h); wrong != "" {
			return nil, fmt.Errorf("httpapi: Config.AllowedHosts: %q %s", h, wrong)
		}
	}
	if wrong := CheckPrefix(cfg.Prefix); wrong != "" {
		return nil, fmt.Errorf("httpapi: Config.Prefix %s", wrong)
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	s := &Server{
		log: cfg.Log, metrics: cfg.Metrics, starting: cfg.Starting, redis: cfg.Redis,
		version: cfg.Version, prefix: prefix(cfg.Prefix),
		started: time.Now(), backups: cfg.BackupDir,
		limits: limits{
			bodies:  edge.NewBudget(bodiesAhead * cfg.MaxBody),
			answers: cfg.Answers,
			lists:   edge.NewBudget(cfg.Answers.Most() / 2),
			pages:   make(chan struct{}, pagesAtOnce),
			waits:   cfg.Waits,
			maxBody: cfg.MaxBody, maxPayload: payloadLimit(cfg.MaxPayload),
			perAddress: cfg.MaxConnectionsPerAddress,
		},
		access: access{
			callers: cfg.Callers,
			hosts:   lowerCased(cfg.AllowedHosts),
			guard:   http.NewCrossOriginProtection(),
			scopes:  make(map[routeKey]allow),
		},
		statsRounds: rounds{pause: statsPause},
		streams:     edge.NewPlaces(maxEventStreams, maxEventStreams/2),
	}
	s.ending, s.end = context.WithCancel(context.Background())
	_, err := s.routes()
	return s, err
}

// Close ends the waiting long-polls, which are answered at once with no tasks, and the streams of
// events. Afterwards reserves do not wait, and /readyz answers 503 so that a load balancer chooses
// another server. It may be called more than once.
func (s *Server) Close() { s.end() }

// Limits of the server that HTTPServer makes.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
	// writeTimeout counts from the end of the request's header. It includes the time for the body,
	// for the longest long-poll, and for writing the answer.
	writeTimeout = bodyTimeout + tasks.MaxWait + answerTimeout
	// answerTimeout is the time to write an answer.
	answerTimeout = 30 * time.Second
	// Bounds of one HTTP/2 connection: the concurrent requests, how long its other end may be
	// silent while it owes something before it is pinged, and how long the ping may be unanswered.
	maxStreams  = 100
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// HTTPServer returns a server for this handler with limits on everything that a caller can delay.
// Its Shutdown calls Close. There is no ReadTimeout: that would end a long-poll, so reading a body
// has a limit of its own.
func (s *Server) HTTPServer() *http.Server {
	h := s.httpServer(s)
	h.RegisterOnShutdown(s.Close)
	return h
}

func (s *Server) httpServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			SendPingTimeout:      pingAfter,
			PingTimeout:          pingTimeout,
			WriteByteTimeout:     pingAfter,
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// headOnly is the context key that marks a HEAD request.
type headOnly struct{}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.packing.serve(w, r) {
		s.serve(s.engine, w, r)
	}
}

// serve answers one request by the routes of engine.
func (s *Server) serve(engine *gin.Engine, w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		// A HEAD is answered like a GET. net/http leaves out the body.
		r = r.WithContext(context.WithValue(r.Context(), headOnly{}, true))
		r.Method = http.MethodGet
	}
	a := &answerWriter{ResponseWriter: w, server: s, last: time.Now().Add(writeTimeout), http1: r.ProtoMajor == 1}
	if s.callers == nil {
		a.payer = edge.Anyone
	}
	defer a.release()
	if r.ContentLength == 0 {
		hasArrived(r)
	}
	engine.ServeHTTP(a, s.prefix.strip(r))
	a.end()
}
