package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/lapsehq/lapse/tasks"
)

// A Manager is the service manager that has started this process, as far as it wants to hear from
// it: systemd with Type=notify. It learns when the server answers, and that it stops. While the
// scheduler moves, it is told so several times in each WatchdogSec, and restarts a process from
// which it hears nothing. Without a service manager only the log tells that the scheduler hangs.
type Manager struct {
	node  string
	log   *slog.Logger
	watch bool          // it waits for signs of life
	every time.Duration // how often to look

	tell   sync.Once // that it cannot be reached, once
	moving func(context.Context) error

	cancel  context.CancelFunc
	running sync.WaitGroup
}

const (
	// lookEvery is how often the scheduler is asked whether it moves when the service manager does
	// not say how often it wants to know.
	lookEvery = 5 * time.Second
	// looksPerPeriod is how often it is asked in each WatchdogSec. A hung scheduler is found out
	// between three quarters of that time and all of it.
	looksPerPeriod = 4
)

// NewManager returns the service manager that the environment names.
func NewManager(log *slog.Logger) *Manager {
	m := &Manager{log: log, every: lookEvery}
	switch period, err := daemon.SdWatchdogEnabled(false); {
	case err != nil:
		log.Warn("the watchdog of the service manager is not fed", "error", err)
	case period > 0:
		m.watch, m.every = true, max(period/looksPerPeriod, time.Millisecond)
	}
	return m
}

// notify tells the service manager something, if there is one that listens.
func (m *Manager) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		m.tell.Do(func() { m.log.Warn("the service manager cannot be told anything", "error", err) })
	}
}

// Ready tells that callers get answers from now on, though the ledger may still have to be reached.
// Waiting for the ledger is no reason to give up the start: a server waits for Redis as long as it
// takes. Until then it is told that the process lives.
func (m *Manager) Ready() {
	m.notify(daemon.SdNotifyReady + "\nSTATUS=answers; the ledger is not open yet")
	if m.watch {
		m.notify(daemon.SdNotifyWatchdog)
	}
	m.run(func(context.Context) error { return nil })
}

// Serving tells that the scheduler works. From now on the watchdog is fed only while it moves.
func (m *Manager) Serving(node string, moving func(context.Context) error) {
	m.End()
	m.node = node
	m.notify("STATUS=serves as " + node)
	m.run(moving)
}

// Stopping tells that the server stops, and after how long it is done at the latest.
func (m *Manager) Stopping(within time.Duration) {
	m.notify(fmt.Sprintf("%s\nSTATUS=stops\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping, within.Microseconds()))
}

// run looks periodically, in a goroutine, until End.
func (m *Manager) run(moving func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	m.moving, m.cancel = moving, cancel
	m.running.Go(func() {
		tick := time.NewTicker(m.every)
		defer tick.Stop()
		var stuck bool
		for {
			select {
			case <-tick.C:
				stuck = m.look(ctx, stuck)
			case <-ctx.Done():
				return
			}
		}
	})
}

// End ends the looks. It may be called more than once.
func (m *Manager) End() {
	if m.cancel != nil {
		m.cancel()
	}
	m.running.Wait()
}

// look feeds the watchdog if the scheduler moves within a period. It reports whether it is stuck,
// and logs when that changes.
func (m *Manager) look(ctx context.Context, was bool) (is bool) {
	within, cancel := context.WithTimeout(ctx, m.every)
	defer cancel()
	err := m.moving(within)
	if ctx.Err() != nil {
		return was // End was called
	}
	stuck := (*tasks.StuckError)(nil)
	if errors.As(err, &stuck) {
		if !was {
			m.log.Error("the scheduler does not move", "node", m.node, "waits_for", stuck.Part, "for", stuck.For.Round(time.Millisecond),
				"watchdog", m.watch)
		}
		return true
	}
	if was {
		m.log.Info("the scheduler moves again", "node", m.node)
	}
	if m.watch {
		m.notify(daemon.SdNotifyWatchdog)
	}
	return false
}
