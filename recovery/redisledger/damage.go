package redisledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// Keys that another program has overwritten do not keep a process from starting. Each kind of
// damage is an ERROR in the log and an entry in readiness, and is handled like this:
//
//	a key of the wrong type, a data set's id    set aside at the start, and written anew; of a
//	                                            shard's keys all but the records also by its
//	                                            next batch
//	an owner's token                            counts as that of a process that no node knows:
//	                                            the shard is adopted after Options.FailoverAfter,
//	                                            unless its owner lives and claims it again
//	this node's entry in the registry           written anew, when its heartbeat was watched
//	another node's entry                        left alone, with its shards, until it starts
//	a heartbeat, a count, a number of a node    begun anew
//	where an id is filed                        left alone: calls about that id fail
//	a record, a setting                         left alone: memory reports its task or topic

// errDamaged is the cause of data that cannot be read though no newer version has written it.
var errDamaged = errors.New("it is damaged")

// A typedKey is a key, and a command that fails if the key has another type than it should.
type typedKey struct {
	key   string
	probe []any // without the key: the command, and what follows the key
}

var (
	isHash   = []any{"hlen"}
	isSet    = []any{"scard"}
	isString = []any{"get"}
	isSorted = []any{"zrangebylex", "-", "+", "limit", 0, 1}
)

// sharedKeys are the keys that belong to no shard.
func (l *Ledger) sharedKeys() []typedKey {
	k := l.keys
	all := []typedKey{
		{k.Nodes(), isHash}, {k.Status(), isHash}, {k.Numbers(), isHash}, {k.Topics(), isHash},
		{k.Changes(), isSorted}, {k.Heartbeat(l.opts.Node), isString}, {k.Dataset(), isString},
	}
	for bucket := range layout.Buckets {
		all = append(all, typedKey{k.IDs(uint8(bucket)), isHash})
	}
	return all
}

// typedKeys returns a shard's keys.
func typedKeys(s *layout.ShardKeys) []typedKey {
	return []typedKey{{s.Tasks(), isHash}, {s.Pending(), isSet}, {s.Dead(), isHash}, {s.DeadIndex(), isSorted}}
}

// mendKeys sets aside those of the keys that have the wrong type.
func (l *Ledger) mendKeys(ctx context.Context, keys []typedKey) error {
	probes := make([]*redis.Cmd, len(keys))
	p := l.client.Pipeline()
	for i, k := range keys {
		args := append([]any{k.probe[0], k.key}, k.probe[1:]...)
		probes[i] = p.Do(ctx, args...)
	}
	_, _ = p.Exec(ctx) // each has its own error
	var faults []error
	for i, k := range keys {
		switch err := probes[i].Err(); {
		case conn.WrongType(err):
			faults = append(faults, l.setAside(ctx, k.key, "it has the wrong type", k.probe...))
		case err != nil && !errors.Is(err, redis.Nil) && !conn.Refused(err): // it may lack the probe
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// setAside renames a key if it is still damaged, see setaside.lua.
func (l *Ledger) setAside(ctx context.Context, key, why string, damage ...any) error {
	what := "the damaged key " + key
	aside := fmt.Sprintf("%sdamaged:%d:", l.keys.Prefix, time.Now().UnixMilli())
	if strings.Contains(key, "{") {
		aside += key
	} else {
		aside += "{" + key + "}" // the slot of the key itself
	}
	renamed, err := conn.SetAsideScript.Run(ctx, l.client, []string{key, aside}, damage...).Bool()
	switch {
	case errors.Is(err, redis.Nil) || err == nil && !renamed:
		return nil // another node has done it
	case err != nil && (conn.Refused(err) || strings.Contains(err.Error(), "can't run this command")):
		l.bulk.waits.Set(what, why+", and the user of Redis may not rename it: rename it by hand, or allow +rename")
		l.log.Error("a key is damaged, and cannot be set aside: rename it by hand, or allow +rename", "key", key, "why", why, "error", err)
		return fmt.Errorf("the key %s is damaged (%s) and the user of Redis may not rename it: %v", key, why, err) //nolint:errorlint // it is no refusal: an operator may mend it
	case err != nil:
		return err
	}
	l.bulk.waits.Set(what, why+"; it is kept as "+aside+", and written anew")
	l.log.Error("a damaged key was set aside, and is written anew", "key", key, "why", why, "kept", aside)
	return nil
}

// unreadableShard is the name of readiness' entry for a shard whose token cannot be read.
func unreadableShard(node string, index int) string {
	return fmt.Sprintf("the owner of shard %d of node %s", index, node)
}

// noteUnreadable enters such a shard in the log and in readiness.
func (l *Ledger) noteUnreadable(node string, index int, t layout.Token) {
	l.bulk.waits.Set(unreadableShard(node, index), fmt.Sprintf("its token %.100q cannot be read: the shard is taken over when no node has claimed it for %v", t.Incarnation, l.opts.FailoverAfter))
	l.log.Error("the token of a shard's owner cannot be read; the shard is taken over when no node has claimed it for a while",
		"of", node, "shard", index, "token", fmt.Sprintf("%.100q", t.Incarnation), "for", l.opts.FailoverAfter)
}
