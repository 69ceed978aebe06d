package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// Settings that were written again, because Redis had lost them, are what was set: a
// concurrency that nobody has set stays unset, and what is set next holds at once,
// although the revisions have begun anew.
func TestSettingsAfterALoss(t *testing.T) {
	server := redistest.Start(t)
	n := newNode(t, server.URL())
	for lease := time.Second; lease <= 5*time.Second; lease += time.Second {
		_, err := n.SetTopic(t.Context(), "x", TopicSettings{Lease: lease}, -1)
		want(t, "SetTopic", err, nil)
	}
	server.Do("flushall")
	n.waitFor("the settings are there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(4) })
	n.waitFor("memory knows their revision", func() bool {
		topic, err := n.Topic("x")
		return err == nil && topic.Revision == 1
	})

	set, err := n.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Minute}, 1)
	if err != nil || set.Settings.Lease != time.Minute || set.Revision != 2 {
		t.Errorf("set to a minute: %+v, %v", set, err)
	}
	server.Do("flushall")
	n.waitFor("the settings are there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(4) })
	want(t, "Close", n.Close(context.Background()), nil)
	n.open()
	if topic, err := n.Topic("x"); err != nil || topic.Settings.Lease != time.Minute || topic.ConcurrencySet {
		t.Errorf("after a restart: %+v, %v", topic, err)
	}
}

// A change that comes before the loss was noticed changes what was set, not the
// defaults.
func TestPauseAfterALoss(t *testing.T) {
	server := redistest.Start(t)
	n := newNode(t, server.URL())
	_, err := n.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Minute}, -1)
	want(t, "SetTopic", err, nil)
	_, err = n.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Hour, Concurrency: 3}, -1)
	want(t, "SetTopic", err, nil)
	for _, loss := range []string{"everything", "the last change"} {
		if loss == "everything" {
			server.Do("flushall")
		} else {
			server.Do("hset", "lapse:topics", "topic/x", `1:{"Lease":60000000000}`)
		}
		for _, paused := range []bool{true, false} {
			want(t, "PauseTopic", n.PauseTopic(t.Context(), "x", paused), nil)
			topic, err := n.Topic("x")
			if err != nil || topic.Settings.Lease != time.Hour || topic.Settings.Concurrency != 3 || topic.Settings.Paused != paused {
				t.Errorf("%s lost: %+v, %v", loss, topic.Settings, err)
			}
		}
	}
}

// Settings that are newer than memory's are not lost: a call of SetTopic has them
// written, and has not told memory yet.
func TestNewerSettingsAreNotOverwritten(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Lease: time.Second})
		newer, err := json.Marshal(TopicSettings{Lease: time.Minute}.stored())
		want(t, "Marshal", err, nil)
		_, err = r.faulty.PutSetting(t.Context(), "topic/x", 1, newer)
		want(t, "PutSetting", err, nil)
		restored, err := r.restoreOnce(t.Context(), r.faulty)
		if restored != 0 || err != nil {
			t.Errorf("%d restored, %v", restored, err)
		}
		held, revision, err := r.faulty.Setting(t.Context(), "topic/x")
		if err != nil || !bytes.Equal(held, newer) || revision != 2 {
			t.Errorf("the ledger holds %s, revision %d, %v", held, revision, err)
		}
	})
}

// Revisions begin anew after a loss, also that of a topic whose settings were deleted
// before: what is set then holds, on every node.
func TestDeletedTopicAfterALoss(t *testing.T) {
	server := redistest.Start(t)
	a, b := newNamedNode(t, server.URL(), "a"), newNamedNode(t, server.URL(), "b")
	is := func(n *node, lease time.Duration) {
		t.Helper()
		n.waitFor("it has heard", func() bool {
			x, err := n.Topic("x")
			return err == nil && x.Settings.Lease == lease
		})
	}
	for lease := time.Minute; lease <= 5*time.Minute; lease += time.Minute {
		_, err := a.SetTopic(t.Context(), "x", TopicSettings{Lease: lease}, -1)
		want(t, "SetTopic", err, nil)
	}
	is(b, 5*time.Minute)
	want(t, "DeleteTopic", a.DeleteTopic(t.Context(), "x", -1), nil)
	b.waitFor("it has heard of the deletion", func() bool {
		_, err := b.Topic("x")
		return errors.Is(err, ErrNoTopic)
	})
	server.Do("flushall")
	a.waitFor("the key of receipts is there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(3) })
	for lease := time.Hour; lease <= 3*time.Hour; lease += time.Hour {
		set, err := a.SetTopic(t.Context(), "x", TopicSettings{Lease: lease}, -1)
		if err != nil || set.Settings.Lease != lease || set.Revision != int64(lease/time.Hour) {
			t.Fatalf("set to %v: %+v, revision %d, %v", lease, set.Settings, set.Revision, err)
		}
		is(b, lease)
	}
}

// A failover may lose nothing but the last change of settings: what a node knows to have
// been confirmed it writes again, and does not take for somebody's deletion.
func TestOnlySettingsAreLost(t *testing.T) {
	server := redistest.Start(t)
	n, b := newNode(t, server.URL()), newNamedNode(t, server.URL(), "b")
	_, err := b.SetTopic(t.Context(), "kept", TopicSettings{Lease: time.Minute}, -1)
	want(t, "SetTopic", err, nil)
	n.waitFor("it knows what the other one has set", func() bool {
		x, err := n.Topic("kept")
		return err == nil && x.Settings.Lease == time.Minute
	})
	want(t, "Close", b.Close(context.Background()), nil)
	client, shared := server.Client(), n.ledger.(recovery.SharedSettings)
	before := client.HGetAll(t.Context(), "lapse:topics").Val()
	_, err = n.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Hour}, -1)
	want(t, "SetTopic", err, nil)
	seen := n.refreshOnce(shared, nil)

	lose := client.TxPipeline()
	lose.Del(t.Context(), "lapse:topics")
	lose.HSet(t.Context(), "lapse:topics", before)
	_, err = lose.Exec(t.Context())
	want(t, "losing the last change", err, nil)
	n.refreshOnce(shared, seen)
	if x, err := n.Topic("x"); err != nil || x.Settings.Lease != time.Hour {
		t.Errorf("the node has %+v, %v", x.Settings, err)
	}
	if kept := client.HGet(t.Context(), "lapse:topics", settingPrefix+"x").Val(); kept == "" {
		t.Error("it was not written again")
	}
}
