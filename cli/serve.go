package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
	_ "time/tzdata" // for times with a zone, on machines that have no zones

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/cli/internal/commandline"
	"github.com/lapsehq/lapse/cli/internal/fault"
	"github.com/lapsehq/lapse/cli/internal/service"
	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/internal/logline"
	"github.com/lapsehq/lapse/metrics"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tracing"
)

// serve is the command that runs a server.
type serve struct {
	settings
	PrintConfig bool `env:"-" help:"Print the settings in effect as YAML that --config reads back, with where each comes from, and do nothing else."`

	file     configFile
	extra    []tasks.Way          // ways of delivery of the calling program
	commands *commandline.Command // all of them

	trial  bool     // it is lapse dev
	orFree []string // settings whose address may be a free one if theirs is taken
}

func (s *serve) configFile() *configFile { return &s.file }

// Run starts the parts of a server, each on the previous one. It returns once the server has
// stopped: nil if it was asked to.
func (s *serve) Run(ctx context.Context, std streams, bad *faults) error {
	hangups := heedSignals()
	// Settings.
	addr, health := s.addresses(bad)
	entrance := s.entrance(bad)
	ways := s.ways(addr, bad)
	port := s.redisPort(bad)
	cfg := s.scheduler(s.file.topics, append(ways.list(), s.extra...))
	bad.include(cfg.Validate())
	if err := bad.err(); err != nil {
		return err
	}
	if s.PrintConfig {
		return printConfig(std.out, s.commands.Named("serve"), &s.file)
	}
	lines := logline.New(std.err, func(to io.Writer, dropped int64) {
		s.logger(to).Warn("lines of the log were dropped: nothing reads it, or not fast enough", "lines", dropped)
	})
	defer lines.Close(logWithin)
	log := s.logger(lines)
	slog.SetDefault(log)
	redisTo(log)
	tuneCollector()
	entrance.warn(!addr.IP.IsLoopback() || health != nil && !health.IP.IsLoopback() || s.redisIsOpen(), log)
	s.warnOfMemory(log)
	s.warnOfModes(log)
	warnOfVariables(s.commands, os.Environ(), log)

	// The addresses.
	bound, err := listen(addr, health, s.RedisListen, s.orFree)
	if err != nil {
		return err
	}
	if s.Node == "" {
		s.Node = nodeName(bound.all.Addr())
	}
	announced := sync.OnceFunc(func() { s.announce(std.out, bound) })
	traces := s.traces(log)
	defer traces.Close()
	if traces != nil {
		cfg.Tracer = tracing.New(traces)
	}

	// Ledger.
	ledger, err := s.ledger(bound.all.Addr(), log, announced)
	if err != nil {
		return errors.Join(err, bound.close())
	}
	if cfg.Spool, err = s.spool(log); err != nil {
		return errors.Join(err, bound.close(), ledger.Close())
	}

	// HTTP server. Until there is a scheduler it reports what the server waits for.
	doors := shared{entrance.callers, s.waits(), edge.NewBudget(s.MaxAnswers)}
	var api *httpapi.Server
	api, err = httpapi.New(httpapi.Config{
		Starting: healthOf(ledger),
		Log:      log,
		MaxBody:  s.MaxBody,

		MaxPayload:               s.MaxPayload,
		MaxAnswers:               s.MaxAnswers,
		Answers:                  doors.answers,
		AllowedHosts:             s.hosts(),
		MaxConnectionsPerAddress: s.MaxConnectionsPerAddress,

		Waits:   doors.waits,
		Version: buildVersion(),
		Metrics: func(of *tasks.Scheduler) http.Handler { return metrics.ServerHandler(of, api, port.figures(), lines) },
		Redis:   port.state,
		Callers: doors.callers, BackupDir: s.BackupDir,
	})
	if err != nil {
		return errors.Join(err, bound.close(), ledger.Close())
	}
	if err = port.open(doors, s.boundRedis(bound), log); err != nil {
		return errors.Join(err, bound.close(), ledger.Close())
	}
	servers := bound.serve(api, port, entrance.certificates, s.MaxConnections)
	entrance.watch(ctx, hangups, ways, log)
	manager := service.NewManager(log)
	defer manager.End()
	manager.Ready()

	// Scheduler. It owns the ledger from here on; replay goes on in the
	// background.
	cfg.Node, cfg.Log, cfg.Observer = s.Node, log, fault.Observer
	scheduler, err := tasks.Open(ctx, ledger, cfg)
	if err != nil {
		if ctx.Err() != nil {
			err = nil // asked to stop during the wait
		}
		return errors.Join(err, s.shutdown(nil, servers, log, ledger.Close))
	}
	ways.attach(scheduler)
	api.Attach(scheduler)
	if err := port.attach(scheduler, ways.keyevent); err != nil {
		return errors.Join(err, s.shutdown(nil, servers, log, func() error { return scheduler.Close(context.Background()) }))
	}
	announced()
	manager.Serving(s.Node, scheduler.Admin().Moving)

	// This lasts until the server is asked to stop, drained, or unable to go on.
	var failure error
	select {
	case <-ctx.Done():
		total := scheduler.Stats().Total
		log.Info("stopping; a second signal ends the process at once", "node", s.Node, "delivering", total.Delivering,
			"grace", s.ShutdownGrace, "handover", s.Handover)
		manager.Stopping(s.stopsWithin())
		s.handOver(scheduler, log)
	case <-scheduler.Admin().Drained():
		log.Info("stopping: the node holds no shards any more", "node", s.Node)
	case <-scheduler.Done():
		failure = scheduler.Err()
	case failure = <-servers.failed:
	}
	manager.Stopping(s.stopsWithin())
	return s.shutdown(failure, servers, log, func() error {
		defer ways.close()
		return scheduler.Close(context.Background())
	})
}

// logWithin is how long the end of a server waits until its log is written.
const logWithin = time.Second

// heedSignals returns where SIGHUP arrives from now on. It would end the process by default, as
// SIGPIPE would once the reader of the log has gone.
func heedSignals() <-chan os.Signal {
	signal.Ignore(syscall.SIGPIPE)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups
}

// tuneCollector makes the garbage collector run when the heap has grown by a
// quarter, unless GOGC says otherwise. Tasks lie in memory without pointers, so
// a collection takes milliseconds however many there are, while the default of
// doubling the heap costs as much memory again as the tasks do.
func tuneCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
}

// handOver hands all shards over to other nodes, if that is set, and logs the result. The stop goes
// on in any case. Shards that are left wait for the next start.
func (s *serve) handOver(scheduler *tasks.Scheduler, log *slog.Logger) {
	if !s.Handover {
		return
	}
	patience, cancel := context.WithTimeout(context.Background(), s.HandoverTimeout)
	defer cancel()
	switch err := scheduler.Drain(patience); {
	case err == nil, errors.Is(err, tasks.ErrClosed):
	case errors.Is(err, tasks.ErrNoSuccessor):
		log.Warn("no other node can take the tasks; they wait for the next start", "node", s.Node, "error", err)
	default:
		log.Error("some shards were not handed over; they wait for the next start, or for failover_after", "node", s.Node, "error", err)
	}
}

// waits returns the places of calls that wait. A token that waits with all its calls, each on a
// connection of its own, leaves half of the connections to the others.
func (s *settings) waits() *edge.Waits {
	return edge.NewWaits(s.MaxWaiting, max(1, min(s.MaxWaitingPerToken, s.MaxConnections/2)))
}

// stopsWithin is how long handOver and shutdown take at most.
func (s *serve) stopsWithin() time.Duration {
	const ledger, margin = 4 * time.Second, 2 * time.Second
	d := s.AnswerWithin + time.Second + s.ShutdownGrace + ledger + margin
	if s.Handover {
		d += s.HandoverTimeout
	}
	return d
}

// shutdown stops the parts in an order in which each still has the parts that it needs. Before it,
// with handover, comes handOver: the server still answers, but says that it is not ready and takes
// no new tasks, while its shards pass to other nodes one by one. Then:
//
//  1. no new connections, and the waiting long-polls are answered (Shutdown
//     does both), then the requests and the commands in progress are finished;
//  2. the scheduler hands nothing out any more, waits for running handlers,
//     and records their results;
//  3. the ledger is closed (by the scheduler, which owns it), so that the
//     next server may open it at once, and so are the ways of delivery;
//  4. the server of probes ends, which reports all of this.
//
// At last Run sends the spans that wait for a collector.
//
// The stop signal has ended the context, so no context is passed: each step has a bound of its own.
// If there was no scheduler yet, last closes the ledger alone.
func (s *serve) shutdown(failure error, servers *servers, log *slog.Logger, last func() error) error {
	var all *multierror.Error
	waits := tellWaits(log)
	defer waits("")
	if failure != nil {
		all = multierror.Append(all, failure)
	}
	// No request takes longer than its wait for the ledger.
	waits("requests in progress")
	if err := servers.end(s.AnswerWithin + time.Second); err != nil {
		all = multierror.Append(all, err)
	}
	waits("deliveries under way, and what is to be recorded")
	if err := last(); err != nil {
		all = multierror.Append(all, fmt.Errorf("stopping the scheduler: %w", err))
	}
	if err := servers.endHealth(); err != nil {
		all = multierror.Append(all, err)
	}
	return all.ErrorOrNil()
}

// tellWaits logs, each second, what a stop waits for: the text of the last call of the function
// that it returns. An empty text ends that.
func tellWaits(log *slog.Logger) func(step string) {
	steps, ended := make(chan string), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for step := ""; ; {
			select {
			case step = <-steps:
				if step == "" {
					return
				}
			case <-tick.C:
				log.Info("still stopping", "waiting_for", step)
			}
		}
	}()
	return func(step string) {
		steps <- step
		if step == "" {
			<-ended
		}
	}
}

// reachable is an address under which this machine reaches itself.
func reachable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if ok && tcp.IP.IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", tcp.Port)
	}
	return addr.String()
}
