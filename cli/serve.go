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
	"path/filepath"
	"runtime/debug"
	"time"
	_ "time/tzdata" // for times with a zone, on machines that have no zones

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/metrics"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/tasks"
)

// serve is the command that runs a server.
type serve struct {
	settings
}

// Run starts what a server is made of, one on top of the other, and returns
// once it has stopped: nil if it was asked to.
func (s *serve) Run(ctx context.Context, std streams, file *configFile, bad *faults) error {
	// Settings.
	addr := s.address(bad)
	bad.include(s.scheduler(file.topics, nil).Validate())
	if err := bad.err(); err != nil {
		return err
	}
	log := s.logger(std.err)
	slog.SetDefault(log)
	collectSooner()

	// The address: callers wait in its backlog until there is somebody to answer.
	listener, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return err
	}
	if s.Node == "" {
		s.Node = listener.Addr().String()
	}

	// Ledger.
	ledger, err := diskledger.Open(s.Data, diskledger.Options{Log: log})
	if err != nil {
		return errors.Join(err, listener.Close())
	}

	// Scheduler. It owns the ledger from here on; replay goes on in the
	// background.
	scheduler, err := tasks.Open(ctx, ledger, s.scheduler(file.topics, log))
	if err != nil {
		return errors.Join(err, listener.Close(), ledger.Close())
	}

	// HTTP server.
	api, err := httpapi.New(httpapi.Config{
		Scheduler: scheduler,
		Log:       log,
		Version:   buildVersion(),
		Metrics:   metrics.Handler(scheduler),
	})
	if err != nil {
		return errors.Join(err, listener.Close(), scheduler.Close(ctx))
	}
	server := api.HTTPServer()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.announce(std.out, listener.Addr())

	// Until told to stop, or unable to go on.
	var failure error
	select {
	case <-ctx.Done():
		log.Info("stopping", "node", s.Node)
	case <-scheduler.Done():
		failure = scheduler.Err()
	case failure = <-served:
	}
	return s.shutdown(failure, server, scheduler)
}

// collectSooner makes the garbage collector run when the heap has grown by a
// quarter, unless GOGC says otherwise. Tasks lie in memory without pointers, so
// a collection takes milliseconds however many there are, while the default of
// doubling the heap costs as much memory again as the tasks do.
func collectSooner() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
}

// shutdown stops in the order in which nobody is left without what it needs:
//
//  1. no new connections, and the waiting long-polls are answered (Shutdown
//     does both), then the requests in progress are finished;
//  2. the scheduler hands nothing out any more, waits for what is running,
//     and records it;
//  3. the ledger is closed (by the scheduler, which owns it), so that the
//     next server may open it at once.
//
// The signal that asked for it has ended the context, so none is passed on:
// each step has a bound of its own.
func (s *serve) shutdown(failure error, server *http.Server, scheduler *tasks.Scheduler) error {
	var all *multierror.Error
	if failure != nil {
		all = multierror.Append(all, failure)
	}
	// No request takes longer than its wait for the ledger. Who is still
	// sending by then, or has connected and said nothing, is cut off.
	patience, cancel := context.WithTimeout(context.Background(), s.AnswerWithin+time.Second)
	defer cancel()
	if err := server.Shutdown(patience); errors.Is(err, context.DeadlineExceeded) {
		server.Close()
	} else if err != nil {
		all = multierror.Append(all, fmt.Errorf("stopping the HTTP server: %w", err))
	}
	if err := scheduler.Close(context.Background()); err != nil {
		all = multierror.Append(all, fmt.Errorf("stopping the scheduler: %w", err))
	}
	return all.ErrorOrNil()
}

// announce says where the server is and how to try it.
func (s *serve) announce(w io.Writer, addr net.Addr) {
	data, err := filepath.Abs(s.Data)
	if err != nil {
		data = s.Data
	}
	url := "http://" + reachable(addr)
	fmt.Fprintf(w, "lapse serves on %s\n", url)
	fmt.Fprintf(w, "tasks are kept on disk in %s\n", data)
	fmt.Fprintf(w, "try: curl %s/v1/tasks --json '{\"topic\":\"hello\",\"delay\":\"10s\",\"payload\":\"world\"}'\n", url)
}

// reachable is an address under which this machine reaches itself.
func reachable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if ok && tcp.IP.IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", tcp.Port)
	}
	return addr.String()
}
