package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// lossyNode starts a node that notices losses late: its heartbeats are two seconds apart.
func lossyNode(t *testing.T, url, name string) *Scheduler {
	t.Helper()
	ledger, err := redisledger.Open(redisledger.Options{
		URL: url, Node: name, Shards: 4, FailoverAfter: 20 * time.Second, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), ledger, Config{Node: name, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// Redis has lost an entry of the directory. Before the node that has the task notices, other
// nodes neither say that there is none, nor create a second one.
func TestLostDirectoryEntry(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "dbfilename dump.rdb")
	url := server.URL()
	a, b := lossyNode(t, url, "a"), lossyNode(t, url, "b")
	n := &redisNode{Scheduler: b, t: t}
	n.waitFor("the nodes know each other", func() bool {
		return !rig.Cluster(a).NoPeers() && !rig.Cluster(b).NoPeers() && !rig.Cluster(a).NeverHadPeers() && !rig.Cluster(b).NeverHadPeers() && rig.Cluster(a).IsIndexed() && rig.Cluster(b).IsIndexed()
	})
	server.Do("save")
	dump := filepath.Join(server.Dir, "dump.rdb")
	older, err := os.ReadFile(dump)
	rig.Want(t, "ReadFile", err, nil)
	for _, id := range []string{"got", "created", "batched"} {
		_, err = a.Schedule(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour, Payload: []byte(`"a"`)})
		rig.Want(t, "Schedule", err, nil)
	}
	server.Kill()
	rig.Want(t, "WriteFile", os.WriteFile(dump, older, 0o600), nil)
	server.Start()

	var task Task
	n.waitFor("the other node answers", func() bool {
		task, err = b.Get(t.Context(), "got")
		return !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnknown)
	})
	if err != nil || task.Node != "a" {
		t.Errorf("Get = %+v, %v", task, err)
	}
	again := Request{ID: "created", Topic: "x", Delay: time.Hour, Payload: []byte(`"a"`)}
	if task, err = b.Schedule(t.Context(), again); err != nil || task.Node != "a" || !task.Repeated {
		t.Errorf("Schedule = %+v, %v", task, err)
	}
	again.ID = "batched"
	results, err := b.ScheduleBatch(t.Context(), []Request{again})
	rig.Want(t, "ScheduleBatch", err, nil)
	rig.Want(t, "of the batch", results[0].Err, nil)
	if rig.Cluster(b).Knows("batched") {
		t.Error("the batch has created a second task")
	}
	rig.Want(t, "Cancel", b.Cancel(t.Context(), "got"), nil)
	if rig.Cluster(a).Knows("got") {
		t.Error("the task that was cancelled is still there")
	}
}

// A creation whose own answer tells that Redis has lost entries asks the other nodes before it
// goes on.
func TestLostDirectoryEntryNoticedByCreation(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "dbfilename dump.rdb")
	url := server.URL()
	a, b := lossyNode(t, url, "a"), lossyNode(t, url, "b")
	n := &redisNode{Scheduler: b, t: t}
	n.waitFor("the nodes know each other", func() bool {
		return !rig.Cluster(a).NoPeers() && !rig.Cluster(b).NoPeers() && !rig.Cluster(a).NeverHadPeers() && !rig.Cluster(b).NeverHadPeers() && rig.Cluster(a).IsIndexed() && rig.Cluster(b).IsIndexed()
	})
	server.Do("save")
	dump := filepath.Join(server.Dir, "dump.rdb")
	older, err := os.ReadFile(dump)
	rig.Want(t, "ReadFile", err, nil)
	r := Request{ID: "created", Topic: "x", Delay: time.Hour}
	_, err = a.Schedule(t.Context(), r)
	rig.Want(t, "Schedule", err, nil)
	server.Kill()
	rig.Want(t, "WriteFile", os.WriteFile(dump, older, 0o600), nil)
	server.Start()
	var task Task
	n.waitFor("the other node answers", func() bool {
		task, err = b.Schedule(t.Context(), r)
		return !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnknown)
	})
	if err != nil || task.Node != "a" || !task.Repeated {
		t.Errorf("Schedule = %+v, %v", task, err)
	}
}
