package redisledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
)

// ErrCommands is returned by Adopt when the server lacks a command that the ledger needs: it
// is a proxy, or an operator has renamed the command.
var ErrCommands = errors.New("the server lacks a command that Lapse needs")

// probeScript does nothing.
var probeScript = conn.NewScript("return 1")

// checkCommands tries the commands that proxies lack, so that its error names the missing one.
// It ignores other failures: later calls report them.
func (l *Ledger) checkCommands(ctx context.Context) error {
	for _, need := range []struct {
		command string
		try     func(ctx context.Context) error
	}{
		{"INFO", func(ctx context.Context) error { return l.client.Info(ctx, "server").Err() }},
		{"EVALSHA and EVAL", func(ctx context.Context) error {
			return probeScript.Run(ctx, l.client, []string{l.keys.Nodes()}).Err()
		}},
		{"SUBSCRIBE", l.trySubscribe},
	} {
		if err := need.try(ctx); conn.UnknownCommand(err) {
			err = fmt.Errorf("%w: %s refuses %s: %w; Lapse needs scripts, INFO and channels, which some proxies lack",
				ErrCommands, l.client, need.command, err)
			l.log.Error("Lapse cannot use this Redis", "refused", need.command, "error", err)
			return err
		}
	}
	return nil
}

func (l *Ledger) trySubscribe(ctx context.Context) error {
	ps := l.client.Subscribe(ctx)
	defer ps.Close()
	if err := ps.Subscribe(ctx, l.keys.BusOf(l.opts.Node)); err != nil {
		return err
	}
	_, err := ps.ReceiveTimeout(ctx, conn.IOTimeout)
	return err
}

const (
	// manyHangUps is how many attempts in a row may end with a closed connection before the
	// cause is examined.
	manyHangUps = 3
	// waitsForServer is the name of readiness' entry for a Redis that closes connections.
	waitsForServer = "Redis"
)

// A hangUps counts attempts to reach Redis that ended with a closed connection. These need not
// be refusals: a server that is shut down closes connections too.
type hangUps struct {
	count  int
	logged bool
}

// note records the outcome of an attempt.
func (h *hangUps) note(ctx context.Context, l *Ledger, err error) {
	if !conn.HungUp(err) {
		h.count = 0
		l.waits.Clear(waitsForServer)
		return
	}
	if h.count++; h.count < manyHangUps || !l.client.AnswersPing(ctx) {
		return
	}
	l.waits.Set(waitsForServer, fmt.Sprintf("%s answers PING and closes the connection after other commands: is it a proxy without scripts, INFO or channels?", l.client))
	if !h.logged {
		h.logged = true
		l.log.Error("the server answers PING and closes the connection after other commands; Lapse needs scripts, INFO and channels, which some proxies lack",
			"redis", l.client.String(), "attempts", h.count, "error", err)
	}
}
