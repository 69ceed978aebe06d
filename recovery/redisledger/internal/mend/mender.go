package mend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
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
//	where an id is registered                        left alone: calls about that id fail
//	a record, a setting                         left alone: memory reports its task or topic

// ErrDamaged is the cause of data that cannot be read though no newer version has written it.
var ErrDamaged = errors.New("damaged entry")

// A Key is a key of Redis, and a command that fails if the key has another type than it should.
type Key struct {
	key   string
	probe []any // without the key: the command, and what follows the key
}

var (
	isHash   = []any{"hlen"}
	isSet    = []any{"scard"}
	isString = []any{"get"}
	isSorted = []any{"zrangebylex", "-", "+", "limit", 0, 1}
)

// SharedKeys are the keys that belong to no shard. Of the heartbeats it is that of a node.
func SharedKeys(k layout.Keys, node string) []Key {
	all := []Key{
		{k.Nodes(), isHash}, {k.Status(), isHash}, {k.Numbers(), isHash}, {k.Topics(), isHash},
		{k.Changes(), isSorted}, {k.Heartbeat(node), isString}, {k.Dataset(), isString},
	}
	for bucket := range layout.Buckets {
		all = append(all, Key{k.IDs(uint8(bucket)), isHash})
	}
	return all
}

// ShardKeys are the keys of a shard.
func ShardKeys(s *layout.ShardKeys) []Key {
	return []Key{{s.Tasks(), isHash}, {s.Pending(), isSet}, {s.Dead(), isHash}, {s.DeadIndex(), isSorted}}
}

// A Mender sets damaged keys aside.
type Mender struct {
	Client *conn.Client
	Keys   layout.Keys
	Waits  *recovery.WaitList // tells what was found
	Log    *slog.Logger
}

// Mend sets aside those of the keys that have the wrong type.
func (d *Mender) Mend(ctx context.Context, keys []Key) error {
	probes := make([]*redis.Cmd, len(keys))
	p := d.Client.Pipeline()
	for i, k := range keys {
		args := append([]any{k.probe[0], k.key}, k.probe[1:]...)
		probes[i] = p.Do(ctx, args...)
	}
	_, _ = p.Exec(ctx) // each has its own error
	var faults []error
	for i, k := range keys {
		switch err := probes[i].Err(); {
		case conn.WrongType(err):
			faults = append(faults, d.setAside(ctx, k.key, "it has the wrong type", k.probe...))
		case err != nil && !errors.Is(err, redis.Nil) && !conn.Refused(err): // it may lack k.probe
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// setAside renames a key if it is still damaged, see setaside.lua.
func (d *Mender) setAside(ctx context.Context, key, why string, damage ...any) error {
	what := "the damaged key " + key
	aside := fmt.Sprintf("%sdamaged:%d:", d.Keys.Prefix, time.Now().UnixMilli())
	if strings.Contains(key, "{") {
		aside += key
	} else {
		aside += "{" + key + "}" // the slot of the key itself
	}
	renamed, err := conn.SetAsideScript.Run(ctx, d.Client, []string{key, aside}, damage...).Bool()
	switch {
	case errors.Is(err, redis.Nil) || err == nil && !renamed:
		return nil // another node has done it
	case err != nil && (conn.Refused(err) || strings.Contains(err.Error(), "can't run this command")):
		d.Waits.Set(what, why+", and the user of Redis may not rename it: rename it by hand, or allow +rename")
		d.Log.Error("a key is damaged, and cannot be set aside: rename it by hand, or allow +rename", "key", key, "why", why, "error", err)
		return fmt.Errorf("the key %s is damaged (%s) and the user of Redis may not rename it: %v", key, why, err) //nolint:errorlint // it is no refusal: an operator may mend it
	case err != nil:
		return err
	}
	d.Waits.Set(what, why+"; it is kept as "+aside+", and written anew")
	d.Log.Error("a damaged key was set aside, and is written anew", "key", key, "why", why, "kept", aside)
	return nil
}

// Dataset returns the data set's layout and id, and creates it if it is missing. In the log,
// the id distinguishes a Redis that has lost everything from one that has lost some shards.
func (d *Mender) Dataset(ctx context.Context) (string, error) {
	key := d.Keys.Dataset()
	id, err := d.Client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		if err := d.Client.SetNX(ctx, key, layout.NewDataset(), 0).Err(); err != nil {
			return "", err
		}
		id, err = d.Client.Get(ctx, key).Result()
	}
	if err != nil {
		return "", err
	}
	version, _, _ := strings.Cut(id, ":")
	n, err := strconv.Atoi(version)
	if err != nil {
		if err := d.setAside(ctx, key, fmt.Sprintf("%.100q is no layout and id of a data set", id), "=", id); err != nil {
			return "", err
		}
		return d.Dataset(ctx)
	}
	if n > layout.Version {
		return "", fmt.Errorf("%w: %s is %s, and this version knows %d", recovery.ErrLayout, key, id, layout.Version)
	}
	return id, nil
}
