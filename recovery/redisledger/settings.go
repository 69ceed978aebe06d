package redisledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
)

// decodeSetting reads what scripts/putsetting.lua has stored. A deleted setting
// has no value.
func decodeSetting(stored string) (value []byte, revision int64, err error) {
	number, rest, there := strings.Cut(stored, ":")
	if !there {
		return nil, 0, nil
	}
	if revision, err = strconv.ParseInt(number, 10, 64); err != nil {
		return nil, 0, fmt.Errorf("a setting's revision %q cannot be read", number)
	}
	return append([]byte{}, rest...), revision, nil
}

// Setting implements recovery.Settings.
func (l *Ledger) Setting(ctx context.Context, name string) ([]byte, int64, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	stored, err := l.client.HGet(ctx, l.keys.topics(), name).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, 0, err
	}
	return decodeSetting(stored)
}

// PutSetting implements recovery.Settings.
func (l *Ledger) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error) {
	done, err := l.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	there := "1"
	if value == nil {
		there, value = "0", []byte{}
	}
	v, err := judge(putSettingScript.run(ctx, l.client, []string{l.keys.topics()}, name, ifRevision, there, value))
	if err != nil {
		return 0, err
	}
	if v.code == 0 {
		return 0, recovery.ErrConflict
	}
	return v.number(0), nil
}

// SettingsVersion implements recovery.SharedSettings.
func (l *Ledger) SettingsVersion(ctx context.Context) (int64, error) {
	done, err := l.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	version, err := l.client.HGet(ctx, l.keys.topics(), "!v").Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return version, err
}

// EachSetting implements recovery.Settings.
func (l *Ledger) EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	all, err := l.client.HGetAll(ctx, l.keys.topics()).Result()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value, revision, err := decodeSetting(all[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if value != nil && strings.HasPrefix(name, prefix) {
			visit(name, value, revision)
		}
	}
	return nil
}
