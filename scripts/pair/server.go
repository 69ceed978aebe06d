package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

// A server is a process on a free port of the loopback interface, which ends with the run.
type server struct {
	cmd   *exec.Cmd
	said  strings.Builder
	ended chan struct{}
}

// start starts a program. Its context ends it.
func start(ctx context.Context, program string, args ...string) (*server, error) {
	s := &server{cmd: exec.CommandContext(ctx, program, args...), ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = s.cmd.Wait(); close(s.ended) }()
	return s, nil
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(10 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// await returns when ask says nil.
func (s *server) await(ctx context.Context, ask func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return fmt.Errorf("%s has ended: %s", filepath.Base(s.cmd.Path), s.said.String())
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", filepath.Base(s.cmd.Path), context.Cause(ctx), err)
		}
	}
}

// freeAddress returns an address on which nothing listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// embedded returns a run of the harness on a ledger.
func embedded(ledger string) func(context.Context, side, string, *regexp.Regexp) ([]measure.Sample, error) {
	return func(ctx context.Context, s side, dir string, chosen *regexp.Regexp) (samples []measure.Sample, err error) {
		args := []string{"-ledger", ledger, "-dir", filepath.Join(dir, "data"), "-paths", chosen.String()}
		if ledger == "redis" {
			address, err := freeAddress()
			if err != nil {
				return nil, err
			}
			_, port, _ := net.SplitHostPort(address)
			redis, err := start(ctx, "redis-server", "--port", port, "--dir", dir, "--save", "", "--appendonly", "yes")
			if err != nil {
				return nil, err
			}
			defer redis.stop()
			if err := redis.await(ctx, func() error { return dial(address) }); err != nil {
				return nil, err
			}
			args = append(args, "-redis", "redis://"+address, "-redis-process", strconv.Itoa(redis.cmd.Process.Pid))
		}
		cmd := exec.CommandContext(ctx, s.bout, args...)
		var said strings.Builder
		cmd.Stderr = &said
		printed, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
		}
		for lines := json.NewDecoder(strings.NewReader(string(printed))); ; {
			var sample measure.Sample
			if lines.Decode(&sample) != nil {
				return samples, err
			}
			samples = append(samples, sample)
		}
	}
}

func dial(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// A served run is a server of Lapse on the disk, and the meter of its paths.
type served struct {
	url     string
	server  *server
	meter   measure.Meter
	chosen  *regexp.Regexp
	samples []measure.Sample
}

// serve starts a server of Lapse.
func serve(ctx context.Context, s side, dir string, chosen *regexp.Regexp, args ...string) (*served, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	args = append([]string{"serve", "--listen", address, "--data", filepath.Join(dir, "data"), "--log-level", "error", "--webhook-allow", "loopback"}, args...)
	v := &served{url: "http://" + address, chosen: chosen}
	if v.server, err = start(ctx, s.lapse, args...); err != nil {
		return nil, err
	}
	v.meter = measure.Meter{Lapse: v.server.cmd.Process.Pid, Load: os.Getpid(), Objects: v.objects}
	if err := v.server.await(ctx, v.ready); err != nil {
		v.server.stop()
		return nil, err
	}
	return v, nil
}

func (v *served) ready() error {
	_, err := v.get("/readyz")
	return err
}

// get returns the body of an answer with status 200.
func (v *served) get(path string) (string, error) {
	a, err := http.Get(v.url + path)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, 4<<20))
	if err == nil && a.StatusCode != http.StatusOK {
		err = errors.New(a.Status)
	}
	return string(text), err
}

var mallocs = regexp.MustCompile(`(?m)^go_memstats_mallocs_total (\S+)$`)

// objects reads how many objects the server has made from its metrics.
func (v *served) objects() (uint64, error) {
	text, err := v.get("/metrics")
	if err != nil {
		return 0, err
	}
	found := mallocs.FindStringSubmatch(text)
	if found == nil {
		return 0, errors.New("/metrics has no go_memstats_mallocs_total")
	}
	n, err := strconv.ParseFloat(found[1], 64)
	return uint64(n), err
}

// rounds is how often a path is measured that can be repeated. The cheapest round counts.
const rounds = 4

// measured adds what n tasks cost in the cheapest round of f, if the path is chosen.
func (v *served) measured(path string, rounds, n int, f func(round int) error) error {
	if !v.chosen.MatchString(path) {
		return nil
	}
	sample, err := v.meter.Least(path, rounds, func(round int) (int, error) { return n, f(round) })
	if err != nil {
		return err
	}
	v.samples = append(v.samples, sample)
	return nil
}
