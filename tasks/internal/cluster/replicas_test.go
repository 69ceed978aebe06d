package cluster_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// With a replica that hangs no caller is told that a task was accepted, and none that
// was is lost: what was asked for again comes true when it answers.
func TestHangingReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "repl-diskless-sync-delay 0")
	replica := redistest.StartReplica(t, master)
	ledger, err := redisledger.Open(redisledger.Options{
		URL: master.URL(), Node: "a", Shards: 1, WaitReplicas: 1, WaitTimeout: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	rig.Want(t, "Open", err, nil)
	s, err := tasks.Open(t.Context(), ledger, tasks.Config{AnswerWithin: 300 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	rig.Want(t, "Open", err, nil)
	n := &redisNode{Scheduler: s, t: t}
	schedule := func(id string) error {
		_, err := s.Schedule(t.Context(), tasks.Request{ID: id, Topic: "x", Delay: time.Hour})
		return err
	}
	n.waitFor("the replica is known", func() bool { return schedule("before") == nil })

	replica.Pause()
	defer replica.Resume()
	rig.Want(t, "Schedule", schedule("again"), tasks.ErrUnknown)
	rig.Want(t, "Schedule", schedule("again"), tasks.ErrUnknown)
	replica.Resume()
	n.waitFor("it is accepted", func() bool { return schedule("again") == nil })
	c := replica.Client()
	defer c.Close()
	for _, id := range []string{"before", "again"} {
		if !c.HExists(t.Context(), "lapse:{a/0}:tasks", id).Val() {
			t.Errorf("the replica does not have %s", id)
		}
	}
	rig.Want(t, "Close", s.Close(t.Context()), nil)
}
