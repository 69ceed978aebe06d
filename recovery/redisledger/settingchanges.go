package redisledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
)

// This file finds out which settings other nodes have changed. Each change has a number, one
// more than that of the change before, and a random name. The latest ones are in a sorted set.
// A node that has seen change 7 reads the set from 7 on. If it finds 7 with the name that it
// knows, and then 8, 9 and so on without a gap up to the last one, these are all changes. A gap is
// damage. If 7 is missing, the node has not read for long. If 7 has another name, Redis has lost
// the change that the node saw.

const (
	// keptChanges is how many changes are kept one by one, and so for how many deleted settings
	// a revision is kept.
	keptChanges = 4096
	// changesAtOnce is how many are read at the same time: at most about 150 kB, as a topic's
	// name has at most 255 bytes.
	changesAtOnce = 512
)

const (
	changeDigits  = 16
	changeNameLen = 8
)

func newChangeName() string {
	var b [changeNameLen / 2]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// decodeChange reads an entry of the set of changes, or of the field "!n", which names no setting.
func decodeChange(entry string) (v recovery.SettingsVersion, setting string, err error) {
	number, rest, _ := strings.Cut(entry, " ")
	v.Last, setting, _ = strings.Cut(rest, " ")
	v.Changes, err = strconv.ParseInt(number, 10, 64)
	if err != nil || len(number) != changeDigits || len(v.Last) != changeNameLen {
		return v, "", fmt.Errorf("a change of settings %q cannot be read", entry)
	}
	return v, setting, nil
}

// SettingsVersion implements recovery.SharedSettings.
func (l *Ledger) SettingsVersion(ctx context.Context) (recovery.SettingsVersion, error) {
	done, err := l.use(ctx)
	if err != nil {
		return recovery.SettingsVersion{}, err
	}
	defer done()
	return l.settingsVersion(ctx)
}

func (l *Ledger) settingsVersion(ctx context.Context) (v recovery.SettingsVersion, err error) {
	values, err := l.client.HMGet(ctx, l.keys.Topics(), "!v", "!n").Result()
	if err != nil {
		return v, err
	}
	count, there := values[0].(string)
	if !there {
		return v, nil
	}
	if v.Changes, err = strconv.ParseInt(count, 10, 64); err != nil {
		return recovery.SettingsVersion{}, nil // it is damaged: the next change begins anew
	}
	if text, there := values[1].(string); there {
		last, _, err := decodeChange(text)
		if err == nil && last.Changes == v.Changes { // else it is damaged
			v.Last = last.Last
		}
	}
	return v, nil
}

// ChangedSettings implements recovery.SharedSettings.
func (l *Ledger) ChangedSettings(ctx context.Context, since recovery.SettingsVersion, prefix string, visit func(name string, value []byte, revision int64)) (recovery.SettingsVersion, error) {
	done, err := l.use(ctx)
	if err != nil {
		return since, err
	}
	defer done()
	now, err := l.settingsVersion(ctx)
	switch {
	case err != nil || now == since:
		return since, err
	case now.Changes <= since.Changes:
		return since, recovery.ErrRewound
	case now.Last == "":
		return since, recovery.ErrNoHistory
	}
	names, err := l.changesBetween(ctx, since, now, prefix)
	if err != nil {
		if conn.TimedOut(err) {
			l.bulk.LogLate(&l.bulk.Settings, changesAtOnce, conn.IOTimeout)
		}
		return since, err
	}
	l.waits.Clear(l.bulk.Settings.Name)
	var faults []error
	err = l.bulk.ReadMany(ctx, &l.bulk.Settings, len(names),
		func(i int) (string, *string) { return l.keys.Topics(), &names[i] },
		func(i int, stored string, there bool) {
			if !there { // deleted so long ago that its revision is gone
				faults = append(faults, recovery.ErrNoHistory)
				return
			}
			value, revision := decodeSetting(stored)
			visit(names[i], value, revision)
		})
	if err = errors.Join(append(faults, err)...); err != nil {
		return since, err
	}
	return now, nil
}

// changesBetween returns which settings have changed after since, until now.
func (l *Ledger) changesBetween(ctx context.Context, since, now recovery.SettingsVersion, prefix string) (names []string, err error) {
	from := fmt.Sprintf("[%0*d", changeDigits, since.Changes)
	met := map[string]bool{}
	for next := since.Changes; ; {
		entries, err := l.readChanges(ctx, from)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			v, name, err := decodeChange(entry)
			switch {
			case err != nil:
				return nil, recovery.ErrNoHistory
			case v.Changes == since.Changes && v.Last != since.Last:
				return nil, recovery.ErrRewound
			case v.Changes != next, v.Changes == now.Changes && v != now:
				return nil, recovery.ErrNoHistory
			case v != since && strings.HasPrefix(name, prefix) && !met[name]:
				met[name] = true
				names = append(names, name)
			}
			if v == now {
				return names, nil
			}
			next++
		}
		if len(entries) < changesAtOnce {
			return nil, recovery.ErrNoHistory
		}
		from = "(" + entries[len(entries)-1]
	}
}

// readChanges reads the next entries of the set of changes.
func (l *Ledger) readChanges(ctx context.Context, from string) ([]string, error) {
	return l.client.ZRangeByLex(ctx, l.keys.Changes(), &redis.ZRangeBy{Min: from, Max: "+", Count: changesAtOnce}).Result()
}
