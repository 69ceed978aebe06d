package redisledger

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// decodeSetting reads what putsetting.lua has stored. A deleted setting has a revision
// and no value. A damaged one is read as a value of revision 1, as in that script: the code
// that decodes the value reports the damage.
func decodeSetting(stored string) (value []byte, revision int64) {
	number, rest, there := strings.Cut(stored, ":")
	revision, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return append([]byte{}, stored...), 1
	}
	if there {
		value = append([]byte{}, rest...)
	}
	return value, revision
}

// Setting implements recovery.Settings.
func (l *Ledger) Setting(ctx context.Context, name string) ([]byte, int64, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	stored, err := l.client.HGet(ctx, l.keys.Topics(), name).Result()
	if errors.Is(err, redis.Nil) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	value, revision := decodeSetting(stored)
	if value == nil {
		revision = 0
	}
	return value, revision, nil
}

// PutSetting implements recovery.Settings.
func (l *Ledger) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error) {
	return l.RestoreSetting(ctx, name, ifRevision, value, 0)
}

// RestoreSetting implements recovery.SettingsRestorer.
func (l *Ledger) RestoreSetting(ctx context.Context, name string, ifRevision int64, value []byte, atLeast int64) (int64, error) {
	done, err := l.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	there := "1"
	if value == nil {
		there, value = "0", []byte{}
	}
	v, err := conn.Judge(conn.PutSettingScript.Run(ctx, l.client, []string{l.keys.Topics(), l.keys.Changes()},
		name, ifRevision, there, value, newChangeName(), l.opts.keptChanges, atLeast))
	if err != nil {
		return 0, err
	}
	if v.Code == 0 {
		return 0, recovery.ErrConflict
	}
	return v.Number(0), nil
}

// redirects bounds how often one call follows keys to another server of a cluster.
const redirects = 8

// EachSetting implements recovery.Settings. When a page does not come in time it starts over
// with smaller pages; when the settings have moved to another server, it starts over there.
func (l *Ledger) EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	for followed := 0; ; {
		again, err := l.scanSettings(ctx, prefix, visit)
		if followed < redirects && l.client.Redirected(ctx, err) {
			again = (recovery.Backoff{}).Wait(ctx, followed) == nil
			followed++
		}
		if !again {
			return err
		}
	}
}

// scanSettings reads all settings, page by page, over one connection: a cursor is invalid on
// another server.
func (l *Ledger) scanSettings(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) (again bool, err error) {
	line, err := l.client.Connection(ctx, l.keys.Topics())
	if err != nil {
		return false, err
	}
	defer line.Close()
	c := &l.bulk.Settings
	for cursor, more := uint64(0), true; more; more = cursor != 0 {
		if err := l.closedError(ctx); err != nil {
			return false, err
		}
		count, _ := c.Next()
		began := time.Now()
		var pairs []string
		pairs, cursor, err = line.HScan(ctx, l.keys.Topics(), cursor, "", int64(count)).Result()
		if err != nil {
			if cause := l.closedError(ctx); cause != nil || !conn.TimedOut(err) {
				return false, cmp.Or(cause, err)
			}
			again = c.LateShort(count)
			l.bulk.LogLate(c, count, conn.IOTimeout)
			return again, err
		}
		bytes := 0
		for _, text := range pairs {
			bytes += len(text)
		}
		c.Came(len(pairs)/2, bytes, time.Since(began))
		l.waits.Clear(c.Name)
		for i := 0; i+1 < len(pairs); i += 2 {
			name := pairs[i]
			if layout.IsReserved(name) {
				continue
			}
			if value, revision := decodeSetting(pairs[i+1]); value != nil && strings.HasPrefix(name, prefix) {
				visit(name, value, revision)
			}
		}
	}
	return false, nil
}
