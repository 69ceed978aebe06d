package main

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/lapsehq/lapse/cli/bench"
	"github.com/lapsehq/lapse/tasks/pubsub"
	"github.com/lapsehq/lapse/tasks/stream"
)

// Every peer delivers every task, once and not early, as far as workloads of a few tasks can show:
// the measured figures are not a mistake of this program.
func TestPeers(t *testing.T) {
	t.Chdir(t.TempDir())
	var redis *server
	if _, err := exec.LookPath("redis-server"); err == nil {
		if redis, err = startRedis(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(redis.stop)
	}
	for _, peer := range []struct {
		name  string
		needs string
		open  func(ctx context.Context) (bench.System, error)
	}{
		{"timers", "go", func(context.Context) (bench.System, error) { return &timers{}, nil }},
		{"asynq", "redis-server", func(context.Context) (bench.System, error) { return openAsynq(redis.addr), nil }},
		{"beanstalkd", "beanstalkd", func(ctx context.Context) (bench.System, error) { return openBeanstalkd(ctx, false) }},
		{"beanstalkd, instant", "beanstalkd", func(ctx context.Context) (bench.System, error) { return openBeanstalkd(ctx, true) }},
		{"by channel", "redis-server", func(ctx context.Context) (bench.System, error) { return openInRedis(ctx, pubsub.Kind) }},
		{"by stream", "redis-server", func(ctx context.Context) (bench.System, error) { return openInRedis(ctx, stream.Kind) }},
		{"expiry", "redis-server", func(ctx context.Context) (bench.System, error) { return openExpiry(ctx) }},
	} {
		t.Run(peer.name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(peer.needs); err != nil {
				t.Skip(peer.needs, "is not installed")
			}
			l := bench.Load{Tasks: 300, Callers: 4, Batch: 100, Payload: 100, Rate: 1000, Duration: 300 * time.Millisecond, Patience: 10 * time.Second}
			if peer.name == "beanstalkd, instant" {
				// As in the matrix: a reserve that is waiting must not get a job of the next
				// instant.
				l.Rest = 2 * time.Second
			}
			for name, workload := range map[string]workload{"burst": bench.Burst, "steady": bench.Steady, "single": bench.Single} {
				if name == "single" && (peer.name == "timers" || peer.name == "expiry") {
					continue // peers do not have to hold tasks that are far ahead
				}
				if name == "steady" && peer.name == "beanstalkd, instant" {
					continue
				}
				if name == "burst" && peer.name == "beanstalkd" {
					continue
				}
				s, err := peer.open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				r, err := workload(t.Context(), s, l)
				if err != nil || r.Broken() || r.Repeated > 0 {
					t.Errorf("%s: %+v: %v", name, r.Faults, err)
				}
			}
		})
	}
}

func TestBareDeletes(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed")
	}
	t.Chdir(t.TempDir())
	redis, err := startRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer redis.stop()
	r, err := bareDeletes(t.Context(), "redis://"+redis.addr, 5000)
	if err != nil || r.TasksPerSecond <= 0 {
		t.Errorf("%+v: %v", r, err)
	}
}
