package respapi

import (
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/keyid"
	"github.com/lapsehq/lapse/tasks"
)

// A key is a key of a command, and the task that it stands for.
type key struct {
	name    []byte
	id      string
	escaped string // of a key whose id does not tell it
	topic   string
}

// key returns the key in an argument. It answers and reports false if it cannot be one.
func (x *call) key(name []byte) (k key, ok bool) {
	topic, ok := x.c.server.topicOf(name)
	switch {
	case len(name) > keyid.MaxKey:
		x.out.Error(errKeyTooLong)
		return k, false
	case !ok:
		x.out.Error("ERR no prefix in resp.topics matches the key")
		return k, false
	}
	id, escaped := keyid.Encode(name)
	return key{name: name, id: id, escaped: escaped, topic: topic}, true
}

// headers returns the headers of the key's task.
func (k *key) headers() map[string]string {
	if k.escaped == "" {
		return nil
	}
	return map[string]string{keyid.Header: k.escaped}
}

// errOtherTopic is returned for a task that has the id of a key, but another topic than the key.
var errOtherTopic = errors.New(errWrongType)

// found returns the task of a key. It exists as a key if isLive is true for it. A task that there
// is not is the zero Task. Errors: errOtherTopic, those of Scheduler.Get but ErrNotFound.
func (x *call) found(ctx context.Context, k *key) (t tasks.Task, err error) {
	t, err = x.scheduler().Get(ctx, k.id)
	switch {
	case errors.Is(err, tasks.ErrNotFound):
		return tasks.Task{}, nil
	case err != nil:
		return tasks.Task{}, err
	case t.Topic != k.topic:
		return tasks.Task{}, errOtherTopic
	}
	return t, nil
}

// isLive reports whether a task is a key that exists: it waits for its deadline, or has none. Later
// it is an expiry that is being delivered.
func isLive(t *tasks.Task, now time.Time) bool {
	switch t.State {
	case tasks.Held:
		return true
	case tasks.Pending:
		return t.Attempt == 0 && t.Due.After(now)
	}
	return false
}
