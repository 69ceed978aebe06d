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
func embedded(ledger string) func(context.Context, life) ([]measure.Sample, error) {
	return func(ctx context.Context, l life) ([]measure.Sample, error) {
		args := []string{"-ledger", ledger, "-dir", filepath.Join(l.dir, "data"), "-paths", l.chosen.String()}
		if ledger == "redis" {
			address, err := freeAddress()
			if err != nil {
				return nil, err
			}
			_, port, _ := net.SplitHostPort(address)
			redis, err := start(ctx, "redis-server", "--port", port, "--dir", l.dir, "--save", "", "--appendonly", "yes")
			if err != nil {
				return nil, err
			}
			defer redis.stop()
			if err := redis.await(ctx, func() error { return dial(address) }); err != nil {
				return nil, err
			}
			args = append(args, "-redis", "redis://"+address, "-redis-process", strconv.Itoa(redis.cmd.Process.Pid))
		}
		return follow(exec.CommandContext(ctx, l.bout, args...), l.yield)
	}
}

// follow runs the harness, and yields when it asks to.
func follow(cmd *exec.Cmd, yield func() error) (samples []measure.Sample, err error) {
	var said strings.Builder
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for lines := json.NewDecoder(out); err == nil; {
		var sample measure.Sample
		switch err = lines.Decode(&sample); {
		case err != nil:
		case sample.Path != "":
			samples = append(samples, sample)
		default:
			if err = yield(); err == nil {
				_, err = io.WriteString(in, "\n")
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	_ = in.Close() // it does not wait for the other side any more
	if ended := cmd.Wait(); ended != nil {
		err = fmt.Errorf("%w: %s", ended, strings.TrimSpace(said.String()))
	}
	return samples, err
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
func serve(ctx context.Context, l life, args ...string) (*served, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	args = append([]string{"serve", "--listen", address, "--data", filepath.Join(l.dir, "data"), "--log-level", "error", "--webhook-allow", "loopback"}, args...)
	v := &served{url: "http://" + address, chosen: l.chosen}
	if v.server, err = start(ctx, l.lapse, args...); err != nil {
		return nil, err
	}
	v.meter = measure.Meter{Lapse: v.server.cmd.Process.Pid, Load: os.Getpid(), Objects: v.objects, Yield: l.yield}
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

// measured adds what the tasks of a path cost, if it is chosen.
func (v *served) measured(p measure.Path) error {
	if !v.chosen.MatchString(p.Name) {
		return nil
	}
	sample, err := v.meter.Measure(p)
	if err != nil {
		return err
	}
	v.samples = append(v.samples, sample)
	return nil
}
