package engine_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

func TestSettingsAreKept(t *testing.T) {
	rig.Bubble(t, tasks.Config{Topics: map[string]tasks.TopicSettings{"brought": {Lease: time.Minute}, "x": {Lease: time.Minute}}}, func(t *testing.T, r *rig.Rig) {
		set, err := r.SetTopic(t.Context(), "x", tasks.TopicSettings{Lease: time.Hour, Concurrency: 7, CountCrashes: true, Retry: tasks.Retry{MaxAttempts: 3}}, 0)
		rig.Want(t, "SetTopic", err, nil)
		for what, again := range map[string]func(){"now": func() {}, "restart": r.Restart, "crash": r.Crash} {
			again()
			x, err := r.Topic("x")
			rig.Want(t, "Topic", err, nil)
			if !reflect.DeepEqual(x.Settings, set.Settings) || x.Revision != set.Revision || x.Settings.Lease != time.Hour || x.Settings.Retry.MinBackoff != time.Second {
				t.Errorf("%s: %+v, want %+v", what, x, set)
			}
			if b, err := r.Topic("brought"); err != nil || b.Settings.Lease != time.Minute || b.Revision != 0 {
				t.Errorf("%s: brought along %+v, %v", what, b, err)
			}
		}
		rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(t.Context(), "x", -1), nil)
		if x, _ := r.Topic("x"); x.Settings.Lease != time.Minute || x.Revision != 0 {
			t.Errorf("deleted, it has %+v", x)
		}
		rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(t.Context(), "x", -1), tasks.ErrNoTopic)
		_, err = r.Topic("never")
		rig.Want(t, "Topic", err, tasks.ErrNoTopic)
		var names []string
		for _, topic := range r.Admin().Topics() {
			names = append(names, topic.Name)
		}
		if !slices.Equal(names, []string{"brought", "x"}) {
			t.Errorf("topics %v", names)
		}
	})
}

// A deleted topic is not shown: neither alone nor in lists, nor while a receiver waits for tasks
// of it. It is again while it has tasks, or settings.
func TestDeletedTopicIsGone(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		shown := func(when string, shown bool) {
			t.Helper()
			_, err := r.Topic("x")
			page, listErr := r.Admin().ListTopics(tasks.TopicQuery{})
			rig.Want(t, "ListTopics", listErr, nil)
			if shown != (err == nil) || shown != (len(page.Topics) == 1) || shown != (len(r.Admin().Topics()) == 1) || err != nil && !errors.Is(err, tasks.ErrNoTopic) {
				t.Errorf("%s: Topic is %v, %d are listed", when, err, len(page.Topics))
			}
		}
		r.MustSetTopic("x", tasks.TopicSettings{Lease: time.Minute})
		id := r.Must(tasks.Request{Topic: "x", Delay: time.Hour}).ID
		rig.Want(t, "Cancel", r.Cancel(t.Context(), id), nil)
		rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(t.Context(), "x", -1), nil)
		shown("deleted", false)
		if s := r.Stats(); len(s.Topics) != 1 || s.Topics[0].Counts.Cancelled != 1 {
			t.Errorf("its task is no longer counted: %+v", s.Topics)
		}
		ctx, cancel := context.WithCancel(t.Context())
		waiting := make(chan error, 1)
		go func() {
			_, err := r.Reserve(ctx, "x", 1, time.Minute, 0)
			waiting <- err
		}()
		synctest.Wait()
		shown("while a receiver waits", false)
		cancel()
		rig.Want(t, "Reserve", <-waiting, nil)
		r.Must(tasks.Request{ID: "new", Topic: "x", Delay: time.Hour})
		shown("with a new task", true)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "new"), nil)
		shown("when that is done", true) // as any topic that was never set up

		r.MustSetTopic("x", tasks.TopicSettings{Lease: time.Minute})
		r.Must(tasks.Request{Topic: "x", Delay: time.Hour})
		_, err := r.Admin().KillTopic(t.Context(), "x", -1)
		rig.Want(t, "KillTopic", err, nil)
		shown("with a dead task", true)
		_, err = r.Admin().DeleteDead(t.Context(), "x", nil)
		rig.Want(t, "DeleteDead", err, nil)
		shown("without the dead task", false)
		r.Restart()
		shown("after a restart", false)
		r.MustSetTopic("x", tasks.TopicSettings{Lease: time.Minute})
		shown("set up again", true)
		r.Restart()
		shown("set up again, after a restart", true)
	})
}

func TestRevisions(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		set := func(lease time.Duration, ifRevision int64) (int64, error) {
			topic, err := r.SetTopic(t.Context(), "x", tasks.TopicSettings{Lease: lease}, ifRevision)
			return topic.Revision, err
		}
		first, err := set(time.Minute, 0)
		rig.Want(t, "SetTopic", err, nil)
		second, err := set(time.Hour, first)
		rig.Want(t, "SetTopic", err, nil)
		if second <= first {
			t.Errorf("revisions %d, %d", first, second)
		}
		_, err = set(time.Second, first)
		rig.Want(t, "SetTopic of an old revision", err, tasks.ErrRevision)
		_, err = set(time.Second, 0)
		rig.Want(t, "SetTopic of none", err, tasks.ErrRevision)
		_, err = set(time.Second, -1)
		rig.Want(t, "SetTopic of any", err, nil)
	})
}

// A change whose answer was lost does not stand in the way of the next one.
func TestSettingsLostAnswer(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Lease: time.Minute})
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.PutSetting, After: true})
		_, err := r.SetTopic(t.Context(), "x", tasks.TopicSettings{Lease: time.Hour}, -1)
		rig.Want(t, "SetTopic", err, tasks.ErrUnknown)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		topic, err := r.SetTopic(ctx, "x", tasks.TopicSettings{Lease: 2 * time.Hour}, -1)
		if err != nil || topic.Settings.Lease != 2*time.Hour {
			t.Errorf("SetTopic afterwards = %+v, %v", topic, err)
		}
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.PutSetting})
		_, err = r.SetTopic(t.Context(), "x", tasks.TopicSettings{Lease: time.Second}, -1)
		rig.Want(t, "SetTopic", err, tasks.ErrUnknown)
		if topic, _ := r.Topic("x"); topic.Settings.Lease != 2*time.Hour {
			t.Errorf("not written, it holds: %+v", topic)
		}
	})
}

// The same for a deletion behind such a change: the second one knows.
func TestSettingsDeletedAfterALostAnswer(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Lease: time.Minute})
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.PutSetting, After: true})
		_, err := r.SetTopic(t.Context(), "x", tasks.TopicSettings{Lease: time.Hour}, -1)
		rig.Want(t, "SetTopic", err, tasks.ErrUnknown)
		rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(t.Context(), "x", -1), tasks.ErrRevision)
		rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(t.Context(), "x", -1), nil)
	})
}

// Pausing and resuming at the same time as other changes loses neither.
func TestSettingsTogether(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Lease: time.Minute})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := r.Admin().PauseTopic(t.Context(), "x", i%2 == 0); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", true), nil)
		topic, err := r.Topic("x")
		if err != nil || topic.Settings.Lease != time.Minute || !topic.Settings.Paused {
			t.Errorf("%+v, %v", topic, err)
		}
		r.Restart()
		if again, _ := r.Topic("x"); !reflect.DeepEqual(again.Settings, topic.Settings) {
			t.Errorf("after a restart %+v", again)
		}
	})
}

// New settings hold for tasks that wait already.
func TestSettingsHoldAtOnce(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		r.MustSetTopic("x", tasks.TopicSettings{Retry: tasks.Retry{MaxAttempts: 1}})
		r.SettleOne(tasks.Verdict{Verb: tasks.Release}, d)
		if task := r.MustGet("t"); task.State != tasks.Dead {
			t.Errorf("%v after its only attempt", task.State)
		}
	})
}

// Settings that this version cannot read are not replaced by defaults because a caller
// pauses the topic.
func TestPauseOfIllegibleSettings(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		const newer = `{"Lease":"of a later version"}`
		_, err := r.Faulty.PutSetting(t.Context(), task.SettingPrefix+"x", 0, []byte(newer))
		rig.Want(t, "PutSetting", err, nil)
		r.Restart()
		for _, paused := range []bool{true, false} {
			if err := r.Admin().PauseTopic(t.Context(), "x", paused); err == nil {
				t.Errorf("PauseTopic(%v) has changed settings that this version cannot read", paused)
			}
		}
		if held, _, err := r.Faulty.Setting(t.Context(), task.SettingPrefix+"x"); err != nil || string(held) != newer {
			t.Errorf("the ledger has %s, %v", held, err)
		}
	})
}
