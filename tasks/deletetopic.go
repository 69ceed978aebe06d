package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// DeleteTopic forgets a topic's settings, unless it has tasks, at any node, that are
// pending, ready or being delivered: those would be delivered by the defaults, which
// no caller may have wanted. Its dead tasks stay as they are. ifRevision is the revision that
// the caller has seen, or -1 for any.
//
// Errors: ErrNoTopic, ErrInUse, ErrRevision, ErrReplaying, ErrUnavailable, ErrUnknown,
// ErrClosed; with several nodes also ErrNodeAway, while one that holds tasks does not answer
// or was not replaced yet, and ErrOverloaded.
func (s Admin) DeleteTopic(ctx context.Context, name string, ifRevision int64) error {
	revision, inUse, err := s.engine.Deletable(ctx, name)
	if err == nil && !inUse && !s.cluster.HasAll() {
		inUse, err = s.cluster.UsedAnywhere(ctx, name)
	}
	switch {
	case err != nil:
		return err
	case revision == 0 && !inUse:
		return ErrNoTopic
	case ifRevision >= 0 && revision != ifRevision:
		return ErrRevision
	case inUse:
		return ErrInUse
	}
	return s.engine.ForgetTopic(ctx, name, revision)
}

// KillTopic is DeleteTopic for a topic that has tasks: those that are pending or ready, at
// any node, become dead, for the reason TopicDeleted, a piece at a time as in Purge; then the
// settings are forgotten. Tasks that are being delivered are left to their receivers; a
// further attempt, if it comes to that, follows the defaults. Killed is always right about
// what was done before an error; repeating the call does the rest.
//
// Errors: those of DeleteTopic but ErrInUse.
func (s Admin) KillTopic(ctx context.Context, name string, ifRevision int64) (Killed, error) {
	revision, inUse, err := s.engine.Deletable(ctx, name)
	switch {
	case err != nil:
		return Killed{}, err
	case revision == 0 && !inUse && s.cluster.NoPeers():
		return Killed{}, ErrNoTopic
	case ifRevision >= 0 && revision != ifRevision:
		return Killed{}, ErrRevision
	case !task.ValidName(name):
		return Killed{}, ErrNoTopic
	}
	t, err := s.cluster.PurgeAll(ctx, query.Purge{Topic: name, Kill: true})
	k := Killed{Killed: t.Cancelled, Delivering: t.Delivering}
	switch {
	case err != nil:
		return k, err
	case revision > 0:
		return k, s.engine.ForgetTopic(ctx, name, revision)
	case k == (Killed{}) && !inUse:
		return k, ErrNoTopic
	}
	return k, nil
}

// TopicInUse reports whether a topic has tasks, at any node, that are pending, ready or being
// delivered. Errors: as of DeleteTopic.
func (s Admin) TopicInUse(ctx context.Context, name string) (bool, error) {
	_, inUse, err := s.engine.Deletable(ctx, name)
	if err == nil && !inUse && !s.cluster.HasAll() {
		inUse, err = s.cluster.UsedAnywhere(ctx, name)
	}
	return inUse, err
}
