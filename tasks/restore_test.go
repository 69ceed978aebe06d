package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

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
	n.waitFor("the settings are there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(3) })
	n.waitFor("memory knows their revision", func() bool {
		topic, err := n.Topic("x")
		return err == nil && topic.Revision == 1
	})

	set, err := n.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Minute}, 1)
	if err != nil || set.Settings.Lease != time.Minute || set.Revision != 2 {
		t.Errorf("set to a minute: %+v, %v", set, err)
	}
	server.Do("flushall")
	n.waitFor("the settings are there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(3) })
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
