package redisledger

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrCommands is returned by Adopt when what answers in the place of Redis does not know a
// command that the ledger needs: a proxy, or a server on which an operator has renamed it.
var ErrCommands = errors.New("what answers there lacks a command that Lapse needs")

// refused reports whether Redis itself has said no, for good.
func refused(err error) bool {
	for _, prefix := range []string{"NOAUTH", "WRONGPASS", "NOPERM"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return saysOneOf(err, "db index is out of range", "invalid db index", "without any password configured") || unknownCommand(err)
}

// unknownCommand reports whether an error says that a command does not exist. An outage, a
// server that is loading and one that may not write never answer that.
func unknownCommand(err error) bool {
	return saysOneOf(err, "unknown command", "unknown redis command", "unsupported command", "command not supported", "not supported command")
}

// saysOneOf reports whether an error is an answer of Redis that contains one of some texts.
func saysOneOf(err error, texts ...string) bool {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return false
	}
	said := strings.ToLower(answer.Error())
	for _, text := range texts {
		if strings.Contains(said, text) {
			return true
		}
	}
	return false
}

// probeScript does nothing.
var probeScript = newScript("return 1")

// checkCommands tries what proxies leave out, so that the error names it. Whatever else goes
// wrong, others find out.
func (l *Ledger) checkCommands(ctx context.Context) error {
	for _, need := range []struct {
		command string
		try     func(ctx context.Context) error
	}{
		{"INFO", func(ctx context.Context) error { return l.client.Info(ctx, "server").Err() }},
		{"EVALSHA and EVAL", func(ctx context.Context) error {
			return probeScript.run(ctx, l.client, []string{l.keys.nodes()}).Err()
		}},
		{"SUBSCRIBE", l.trySubscribe},
	} {
		if err := need.try(ctx); unknownCommand(err) {
			err = fmt.Errorf("%w: %s refuses %s: %w; Lapse needs scripts, INFO and channels, and no proxy that leaves them out",
				ErrCommands, l.address, need.command, err)
			l.log.Error("this is no Redis that Lapse can use", "refused", need.command, "error", err)
			return err
		}
	}
	return nil
}

func (l *Ledger) trySubscribe(ctx context.Context) error {
	ps := l.client.Subscribe(ctx)
	defer ps.Close()
	if err := ps.Subscribe(ctx, l.keys.busOf(l.opts.Node)); err != nil {
		return err
	}
	_, err := ps.ReceiveTimeout(ctx, ioTimeout)
	return err
}

const (
	// manyHangUps is after how many attempts in a row that ended with a closed connection
	// the cause is looked for.
	manyHangUps = 3
	// waitsForServer is what readiness calls a Redis that hangs up.
	waitsForServer = "Redis"
)

// hungUp reports whether the other side has closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// A hangUps counts attempts to reach Redis that ended with a closed connection. It is not
// said that these are refusals: a server that is shut down closes connections too.
type hangUps struct {
	count  int
	logged bool
}

// note takes the outcome of an attempt.
func (h *hangUps) note(ctx context.Context, l *Ledger, err error) {
	if !hungUp(err) {
		h.count = 0
		l.bulk.waits.Clear(waitsForServer)
		return
	}
	if h.count++; h.count < manyHangUps || !l.answersPing(ctx) {
		return
	}
	l.bulk.waits.Set(waitsForServer, fmt.Sprintf("%s answers PING and hangs up when it gets other commands: is it a proxy that leaves out scripts, INFO or channels?", l.address))
	if !h.logged {
		h.logged = true
		l.log.Error("what answers in the place of Redis answers PING and hangs up when it gets other commands; Lapse needs scripts, INFO and channels, and no proxy that leaves them out",
			"redis", l.address.String(), "attempts", h.count, "error", err)
	}
}

// answersPing asks over a connection that has been sent nothing else: the client begins each
// of its own with HELLO.
func (l *Ledger) answersPing(ctx context.Context) bool {
	if l.address.mode != standalone {
		return false
	}
	config := l.opts.TLS
	if config == nil {
		var err error
		if config, err = l.address.tls(); err != nil {
			return false
		}
	}
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	var conn net.Conn
	var err error
	if config != nil {
		conn, err = (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", l.address.hosts[0])
	} else {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", l.address.hosts[0])
	}
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(ioTimeout))
	if _, err := io.WriteString(conn, "*1\r\n$4\r\nPING\r\n"); err != nil {
		return false
	}
	line, err := bufio.NewReader(io.LimitReader(conn, 512)).ReadString('\n')
	return err == nil && (strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH"))
}
