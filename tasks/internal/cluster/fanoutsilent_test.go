package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A node that does not answer, or is not there, costs a caller no more than AnswerWithin, and a
// second in which the others do their part.
func TestSilentNodeCostsAnswerWithin(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, silent := f.Nodes[0], f.Nodes[2]
		fillAll(f, 4, "x", "g")
		measure := func(what string, call func() error, kind error) {
			t.Helper()
			began := time.Now()
			rig.Want(t, what, call(), kind)
			if took := time.Since(began); took > a.Engine().Config.AnswerWithin+time.Second {
				t.Errorf("%s took %v", what, took)
			}
		}
		cancel := func() error { _, err := a.CancelGroup(t.Context(), "g"); return err }
		purge := func() error { _, err := a.Admin().Purge(t.Context(), "x"); return err }
		list := func() error { _, err := a.List(t.Context(), Query{}); return err }
		page, err := a.Admin().Export(t.Context(), ExportQuery{})
		rig.Want(t, "first page of an export", err, nil)
		first := func() error { _, err := a.Admin().Export(t.Context(), ExportQuery{}); return err }
		second := func() error { _, err := a.Admin().Export(t.Context(), ExportQuery{Cursor: page.Cursor}); return err }
		f.Lose(func(from, to string, _ []byte) bool { return from == silent.Name || to == silent.Name })
		measure("first page", first, nil) // the topics, which are in the ledger
		measure("second page", second, ErrNodeAway)
		measure("CancelGroup", cancel, ErrUnknown)
		measure("Purge", purge, ErrUnknown)
		measure("List", list, ErrNodeAway)
		f.Lose(nil)
		rig.Pass(time.Minute)
		fillAll(f, 4, "x", "g")
		silent.Crash()
		measure("CancelGroup without the node", cancel, ErrNodeAway)
		measure("Purge without the node", purge, ErrNodeAway)
		measure("List without the node", list, ErrNodeAway)
		measure("first page without the node", first, nil)
		measure("second page without the node", second, ErrNodeAway)
	})
}

// A node of a real Redis that does not answer costs a caller AnswerWithin, not four times that.
func TestSilentNodeOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	var nodes []*Scheduler
	for name, url := range map[string]string{"a": server.URL(), "b": proxy.URL()} {
		ledger, err := redisledger.Open(redisledger.Options{
			URL: url, Node: name, Shards: 4, FailoverAfter: time.Hour, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), ledger, Config{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		<-rig.Engine(s).Reading.Replayed
		if _, err = s.Schedule(t.Context(), Request{Topic: "x", Group: "g", Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if nodes = append(nodes, s); name == "a" {
			nodes[0], nodes[len(nodes)-1] = s, nodes[0]
		}
	}
	a := nodes[0]
	for rig.Cluster(a).NoPeers() {
		if _, err := rig.Engine(a).Fleet.ShardIDs(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	proxy.SetUnheard(true) // its heartbeat goes on
	defer proxy.SetUnheard(false)
	_, reach, err := a.Admin().FleetStats(t.Context())
	if err != nil || len(reach.Missing) != 1 || reach.Missing[0].Node != "b" || len(reach.Nodes) != 1 {
		t.Errorf("FleetStats covers %v and misses %v, %v", reach.Nodes, reach.Missing, err)
	}
	for what, call := range map[string]func(context.Context) error{
		"CancelGroup": func(ctx context.Context) error { _, err := a.CancelGroup(ctx, "g"); return err },
		"Purge":       func(ctx context.Context) error { _, err := a.Admin().Purge(ctx, "x"); return err },
		"List":        func(ctx context.Context) error { _, err := a.List(ctx, Query{}); return err },
	} {
		began := time.Now()
		err := call(t.Context())
		if !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrNodeAway) {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(began); took >= 2*rig.Engine(a).Config.AnswerWithin {
			t.Errorf("%s took %v", what, took)
		}
	}
}
