package diskledger

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A lines keeps what is logged, and calls told for what is said of the store as a whole.
type lines struct {
	told func()

	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	l.text.Write(p)
	l.mu.Unlock()
	if bytes.Contains(p, []byte("the embedded store")) {
		l.told()
	}
	return len(p), nil
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// What Pebble finds behind a cut fence is not on the disk: no alarm is raised. Damage that is on
// the disk is told.
func TestAlarms(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(fs *vfs.MemFS, e *engine)
		alarms bool
	}{
		"behind a cut fence": {func(_ *vfs.MemFS, e *engine) { e.fence.cut(errDisk) }, false},
		"damage on the disk": {func(fs *vfs.MemFS, _ *engine) { spoilTables(t, fs) }, true},
	} {
		// Pebble tries again without a pause, until the end of ctx.
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		log := &lines{told: cancel}
		fs := vfs.NewMem()
		l, err := Open("/ledger", Options{fs: fs, Log: quiet(), MinFree: -1})
		if err != nil {
			t.Fatal(err)
		}
		lock, err := l.lockDirectory()
		if err != nil {
			t.Fatal(err)
		}
		e, err := l.openEngine(lock, false)
		if err != nil {
			t.Fatal(err)
		}
		put := func(n byte) {
			for _, key := range []string{"a", "b", "c"} {
				if err := e.db.Set([]byte(key), bytes.Repeat([]byte{n}, 1<<10), pebble.NoSync); err != nil {
					t.Fatal(err)
				}
			}
		}
		put(1)
		if err := e.db.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := e.close(); err != nil {
			t.Fatal(err)
		}
		l.log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		if e, err = l.openEngine(lock, true); err != nil {
			t.Fatal(err)
		}
		put(2)
		c.spoil(fs, e)
		if err := e.db.Compact(ctx, []byte("a"), []byte("z"), false); err == nil {
			t.Errorf("%s: the store compacts: the test tests nothing", name)
		}
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("%s: nothing is said of the store: %s", name, &log.text)
		}
		cancel()
		if err := e.close(); err != nil {
			t.Log(err)
		}
		_ = lock.Close()
		if got := log.count("level=ERROR"); got > 0 != c.alarms {
			t.Errorf("%s: %d alarms: %s", name, got, &log.text)
		}
	}
}

// spoilTables overwrites a part of every table.
func spoilTables(t *testing.T, fs *vfs.MemFS) {
	names, err := fs.List("/ledger")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if path.Ext(name) != ".sst" {
			continue
		}
		f, err := fs.OpenReadWrite(path.Join("/ledger", name), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, 40), 5); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		_ = f.Close()
	}
}

// An alarm whose cause lasts is logged once a minute, with how often it was raised meanwhile.
func TestAlarmsAreFew(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		log := &lines{told: func() {}}
		l := newAlarms(pebbleLog{slog.New(slog.NewTextHandler(log, nil)), newFence(vfs.NewMem())}, "/ledger").listener()
		for range 3 {
			for range 100 {
				l.BackgroundError(errDisk)
				l.DataCorruption(pebble.DataCorruptionInfo{Path: "1.sst", Details: errDisk})
			}
			time.Sleep(alarmEvery)
		}
		for _, text := range []string{"the embedded store is damaged", "the embedded store cannot compact"} {
			if log.count(text) != 3 || log.count("repeated=99") != 4 {
				t.Errorf("%s: %s", text, &log.text)
			}
		}
	})
}
