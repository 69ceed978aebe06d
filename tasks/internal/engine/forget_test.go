package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// A slow ledger deletes a setting at once and answers when it is told to.
type slowDeletions struct {
	*ledgertest.Faulty
	answer chan struct{}
}

func (l *slowDeletions) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error) {
	revision, err := l.Faulty.PutSetting(ctx, name, ifRevision, value)
	if value == nil {
		<-l.answer
	}
	return revision, err
}

// Settings that were made while the deletion of the old ones was on its way stay.
func TestDeletionDoesNotForgetNewerSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &slowDeletions{ledgertest.Wrap(memledger.New()), make(chan struct{})}
		s, err := tasks.Open(t.Context(), ledger, tasks.Config{})
		rig.Want(t, "Open", err, nil)
		defer func() { rig.Want(t, "Close", s.Close(context.Background()), nil) }()
		_, err = s.SetTopic(t.Context(), "x", tasks.TopicSettings{Lease: time.Minute}, -1)
		rig.Want(t, "SetTopic", err, nil)
		deleted := make(chan error, 1)
		go func() { deleted <- s.Admin().DeleteTopic(t.Context(), "x", -1) }()
		synctest.Wait()
		set, err := s.SetTopic(t.Context(), "x", tasks.TopicSettings{Lease: time.Hour}, -1)
		rig.Want(t, "SetTopic", err, nil)
		close(ledger.answer)
		rig.Want(t, "DeleteTopic", <-deleted, nil)
		now, err := s.Topic("x")
		if rig.Want(t, "Topic", err, nil); now.Settings.Lease != time.Hour || now.Revision != set.Revision {
			t.Errorf("in memory: lease %v, revision %d; set was %d", now.Settings.Lease, now.Revision, set.Revision)
		}
		_, revision, err := ledger.Setting(t.Context(), task.SettingPrefix+"x")
		if rig.Want(t, "Setting", err, nil); revision != now.Revision {
			t.Errorf("in the ledger: revision %d, in memory %d", revision, now.Revision)
		}
	})
}
