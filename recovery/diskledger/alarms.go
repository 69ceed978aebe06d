package diskledger

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A pebbleLog is what one instance of Pebble logs to. It must not end the process.
//
// Behind a cut fence Pebble reads files that it believes it has written, and finds them empty,
// short or missing. None of that is on the disk, so it is logged for developers only. Damage that
// is on the disk is found again by the next instance.
type pebbleLog struct {
	log   *slog.Logger
	fence *fence
}

func (p pebbleLog) Infof(format string, args ...any) { p.say(slog.LevelDebug, format, args...) }

func (p pebbleLog) Errorf(format string, args ...any) { p.say(slog.LevelWarn, format, args...) }

// Fatalf is called where Pebble wants to end the process. It returns, so Pebble goes on, behind a
// fence that is cut.
func (p pebbleLog) Fatalf(format string, args ...any) {
	p.fence.cut(fmt.Errorf("pebble: "+format, args...))
}

// level returns the level of a line: Debug behind a cut fence.
func (p pebbleLog) level(level slog.Level) slog.Level {
	if p.fence.broken() != nil {
		return slog.LevelDebug
	}
	return level
}

func (p pebbleLog) say(level slog.Level, format string, args ...any) {
	if level = p.level(level); p.log.Enabled(context.Background(), level) {
		p.log.Log(context.Background(), level, "pebble: "+fmt.Sprintf(format, args...))
	}
}

// alarmEvery is how often one alarm is logged while its cause lasts: Pebble repeats what has failed
// at once.
const alarmEvery = time.Minute

// alarms log what one instance of Pebble reports of the files. Each of them is logged once in
// alarmEvery.
type alarms struct {
	pebbleLog
	dir string

	mu      sync.Mutex // guards everything below
	corrupt alarm
	stuck   alarm
}

// An alarm is one kind of report.
type alarm struct {
	told     time.Time
	repeated int // since it was logged
}

func newAlarms(log pebbleLog, dir string) *alarms { return &alarms{pebbleLog: log, dir: dir} }

func (a *alarms) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			a.raise(&a.stuck, "the embedded store cannot compact", "error", err)
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			a.raise(&a.corrupt, "the embedded store is damaged", "file", info.Path, "error", info.Details)
		},
	}
}

func (a *alarms) raise(kind *alarm, text string, args ...any) {
	args = append(args, "dir", a.dir)
	if level := a.level(slog.LevelError); level != slog.LevelError {
		a.log.Log(context.Background(), level, text+", which has failed and is not used any more", args...)
		return
	}
	a.mu.Lock()
	now, repeated := time.Now(), kind.repeated
	silent := !kind.told.IsZero() && now.Sub(kind.told) < alarmEvery
	if kind.repeated++; !silent {
		kind.told, kind.repeated = now, 0
	}
	a.mu.Unlock()
	if !silent {
		a.log.Error(text, append(args, "repeated", repeated)...)
	}
}
