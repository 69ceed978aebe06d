package redisledger

import (
	"fmt"
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A key that another program gives the wrong type while a node runs is set aside, and the batch
// that finds it is written as a whole: no task is lost between the pending and the dead.
func TestBatchMeetsKeyOfTheWrongType(t *testing.T) {
	server := redistest.Start(t)
	for _, c := range []struct {
		key    func(k *layout.ShardKeys) string
		change recovery.Change
		want   content
	}{
		{(*layout.ShardKeys).Pending, recovery.Change{ID: []byte("a"), From: pending(noon), To: pending(noon), Data: []byte("again")}, content{"a": "again", "new": "record"}},
		{(*layout.ShardKeys).Dead, bury("a", "buried"), content{"dead a": "buried", "new": "record"}},
		{(*layout.ShardKeys).DeadIndex, bury("a", "buried"), content{"dead a": "buried", "new": "record"}},
	} {
		v := newLives(server.URL())
		v.opts.Shards = 1
		log := &lines{}
		v.opts.Log = log.logger()
		l := v.open(t)
		adopt(t, l)
		apply(t, l, put("a", "record"))
		keys := l.member.Term(0).Keys
		key := c.key(&keys)
		t.Run(key, func(t *testing.T) {
			server.Do("del", key)
			server.Do("set", key, "of another program")
			persist(t, l, c.change, put("new", "record"))
			wantHeld(t, server.Client(), l, c.want)
			if !log.has("set aside", fmt.Sprint("key=", key)) {
				t.Error(log)
			}
		})
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		server.Do("flushall")
	}
}
