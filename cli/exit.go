package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/cli/internal/commandline"
	"github.com/lapsehq/lapse/cli/internal/exportfile"
	"github.com/lapsehq/lapse/cli/internal/movein"
	"github.com/lapsehq/lapse/cli/internal/movein/asynqtasks"
	"github.com/lapsehq/lapse/cli/internal/movein/rediskeys"
	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger"
)

// Exit codes, as documented at the package. None is 2, the code of a Go program that has panicked:
// a service manager must distinguish a panic, after which it starts the server again, from a wrong
// setting.
const (
	exitOK          = 0
	exitFailed      = 1
	exitInUse       = 3
	exitNotFound    = 4
	exitConflict    = 5
	exitUnavailable = 6
	exitDenied      = 7
	exitUsage       = 64  // EX_USAGE of sysexits.h
	exitInterrupted = 130 // that of a shell for a program that SIGINT has ended
)

// exits maps errors to exit codes. Of several errors, the first match in this order counts.
var exits = []struct {
	code int
	errs []error
}{
	{exitUsage, []error{rediskeys.ErrNotify, asynqtasks.ErrServers}},
	{exitUsage, []error{errSettings, redisledger.ErrCommands, client.ErrInvalid, client.ErrReceipt, client.ErrTooLarge}},
	{exitInUse, []error{recovery.ErrHeld, recovery.ErrLost, recovery.ErrLayout, exportfile.ErrBusy, syscall.EADDRINUSE}},
	{exitInterrupted, []error{context.Canceled}},
	{exitDenied, []error{client.ErrUnauthorized}},
	{exitUnavailable, []error{movein.ErrSource}},
	{exitUnavailable, []error{client.ErrUnknown, client.ErrUnavailable, client.ErrUnreachable, client.ErrOverloaded}},
	{exitConflict, []error{client.ErrDelivering, client.ErrDead, client.ErrNotDead, client.ErrExists, client.ErrStale, client.ErrRevision, client.ErrHandled, client.ErrInUse, client.ErrNoSuccessor, client.ErrNoBackup, client.ErrNotUndone}},
	{exitNotFound, []error{client.ErrNotFound, client.ErrNoTopic, client.ErrNoNode, client.ErrNoAct, movein.ErrNothing}},
}

func exitOf(err error) int {
	if err == nil {
		return exitOK
	}
	if errors.As(err, new(*commandline.UsageError)) {
		return exitUsage
	}
	for _, e := range exits {
		for _, target := range e.errs {
			if errors.Is(err, target) {
				return e.code
			}
		}
	}
	return exitFailed
}

// A jsonFailure is an error of a command that was given --json.
type jsonFailure struct{ error }

func (f jsonFailure) Unwrap() error { return f.error }

// printError writes an error to standard error: a line, or with --json an object.
func printError(w io.Writer, err error) {
	switch {
	case errors.As(err, new(jsonFailure)):
		failure := struct {
			Error   string          `json:"error"`
			Exit    int             `json:"exit"`
			Problem *client.Problem `json:"problem,omitempty"`
		}{Error: explain(err), Exit: exitOf(err)}
		errors.As(err, &failure.Problem)
		text, _ := json.Marshal(failure) // strings and numbers only: it cannot fail
		fmt.Fprintf(w, "%s\n", plainJSON(text))
	default:
		fmt.Fprintf(w, "lapse: %s\n", plainLines(explain(err)))
	}
}

// A partial is an error of a command that had done a part of its work by then.
type partial struct {
	error
	done string // what was done, and how to go on
}

func (p *partial) Error() string { return p.error.Error() + "; " + p.done }
func (p *partial) Unwrap() error { return p.error }

// explain is the text of an error, with what the operator can do about it.
func explain(err error) string {
	if p := (*partial)(nil); errors.As(err, &p) {
		return explain(p.error) + "; " + p.done
	}
	text := err.Error()
	switch {
	case errors.Is(err, context.Canceled) && errors.Is(err, client.ErrUnknown):
		text = "interrupted; the outcome is unknown"
	case errors.Is(err, context.Canceled):
		text = "interrupted"
	case errors.Is(err, client.ErrUnauthorized):
		text += "; a token is given in LAPSE_TOKEN, or in the file that --token-from names"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		text += "; --ca-file names those that may have signed it"
	case errors.Is(err, client.ErrUnreachable) && errors.Is(err, syscall.ECONNREFUSED):
		text += "; lapse serve starts a server, --server or LAPSE_SERVER names another one"
	case errors.As(err, new(errListen)):
		bound := errListen{}
		errors.As(err, &bound)
		text += "; --" + bound.setting + " names another one"
	case errors.Is(err, syscall.EADDRINUSE):
		text += "; --listen names another one, as in --listen 127.0.0.1:7481"
	}
	if p := (*client.Problem)(nil); errors.As(err, &p) {
		switch {
		case p.Status == 500:
			text += "; request id " + p.RequestID
		case strings.HasSuffix(p.Type, "/problems/ledger_unavailable"), strings.HasSuffix(p.Type, "/problems/starting"):
			text += "; /readyz of the server says why"
		}
	}
	return text
}
