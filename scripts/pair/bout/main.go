// Command bout is one run of Lapse embedded in a process: the harness of scripts/pair. It prints a
// measure.Sample for each path that was asked for, as a line of JSON.
//
// Each part stands in a file of its own, which registers it: a file that does not compile within
// another commit can be left out.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/scripts/pair/measure"
	"github.com/lapsehq/lapse/tasks"
)

// A part measures one path.
type part struct {
	name    string
	ledgers string // where it is measured, with spaces
	order   int
	run     func(context.Context, *bout) error
}

var parts []part

// register is called by the file of a part when the program starts.
func register(order int, name, ledgers string, run func(context.Context, *bout) error) {
	parts = append(parts, part{name, ledgers, order, run})
}

// A bout is the state of a run.
type bout struct {
	ledger string
	open   func() (recovery.Ledger, error)
	s      *tasks.Scheduler
	meter  measure.Meter
	out    *json.Encoder
	filled int // tasks that are pending far ahead
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bout:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) (err error) {
	flags := flag.NewFlagSet("bout", flag.ContinueOnError)
	ledger := flags.String("ledger", "", "memory, disk or redis")
	dir := flags.String("dir", "", "directory of the ledger disk")
	url := flags.String("redis", "", "URL of the Redis of the ledger redis")
	process := flags.Int("redis-process", 0, "the number of its process")
	paths := flags.String("paths", "", "regular expression for the paths to measure")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := regexp.Compile(*paths)
	if err != nil {
		return fmt.Errorf("-paths: %w", err)
	}
	quiet := slog.New(slog.DiscardHandler)
	open := map[string]func() (recovery.Ledger, error){
		"memory": func() (recovery.Ledger, error) { return memledger.New(), nil },
		"disk": func() (recovery.Ledger, error) {
			return diskledger.Open(*dir, diskledger.Options{Log: quiet})
		},
		"redis": func() (recovery.Ledger, error) {
			return redisledger.Open(redisledger.Options{URL: *url, Node: "pair", Log: quiet})
		},
	}[*ledger]
	if open == nil {
		return fmt.Errorf("-ledger: %q is none of memory, disk, redis", *ledger)
	}
	b := &bout{
		ledger: *ledger, open: open, out: json.NewEncoder(out),
		meter: measure.Meter{Lapse: os.Getpid(), Redis: *process, Objects: objects},
	}
	b.meter.Yield = func() error { return b.yield(in) }
	if err := b.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	slices.SortFunc(parts, func(a, b part) int { return a.order - b.order })
	for _, p := range parts {
		if !slices.Contains(strings.Fields(p.ledgers), b.ledger) || !chosen.MatchString(p.name+"/"+b.ledger) {
			continue
		}
		if err := p.run(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

func (b *bout) start(ctx context.Context) error {
	ledger, err := b.open()
	if err != nil {
		return err
	}
	b.s, err = tasks.Open(ctx, ledger, tasks.Config{
		MaxPending: 10_000_000, MaxBytes: 1 << 40, AnswerWithin: time.Minute, Log: slog.New(slog.DiscardHandler),
	})
	return err
}

func (b *bout) stop() error { return b.s.Close(context.Background()) }

// rounds is in how many rounds most paths are measured.
const rounds = 8

// measured prints what the tasks of a path have cost.
func (b *bout) measured(p measure.Path) error {
	runtime.GC() // what was before is not this path's garbage
	p.Name += "/" + b.ledger
	sample, err := b.meter.Measure(p)
	if err != nil {
		return err
	}
	return b.out.Encode(sample)
}

// yield prints a sample without a path, and waits for a line of input. It does not wait once that
// is at its end.
func (b *bout) yield(in io.Reader) error {
	if err := b.out.Encode(measure.Sample{}); err != nil {
		return err
	}
	var line [1]byte
	if _, err := in.Read(line[:]); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// until returns when is says so, which is asked every 2 ms, or when the scheduler has ended.
func (b *bout) until(ctx context.Context, is func() (bool, error)) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, err := is(); done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-b.s.Done():
			return b.s.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func objects() (uint64, error) {
	read := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}}
	metrics.Read(read)
	return read[0].Value.Uint64(), nil
}
