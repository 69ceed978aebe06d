package respapi

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/respapi/internal/resp"
	"github.com/lapsehq/lapse/respapi/internal/script"
	"github.com/lapsehq/lapse/tasks"
)

// A script runs on a draft, as the commands of a transaction do: on that of EXEC, or on one of its
// own. So all that it changes is written when it has ended, and nothing of it if it has failed. If
// another client comes first, the script runs again.

// longestLogged is how many bytes of redis.log are logged.
const longestLogged = 256

// errNoScript is the answer to EVALSHA of a script that this node does not keep.
const errNoScript = "NOSCRIPT No matching script. Please use EVAL."

// transact runs a command on a draft of its own.
func (x *call) transact() {
	d := newDraft(x, nil)
	defer d.close()
	y := *x
	p := d.plan([]*call{&y}, nil)
	p.whole = true
	if err := d.settle(p); err != nil && !d.begun {
		x.fail(err)
	} else {
		d.answer(p, err)
	}
}

// A compiled is the script of EVAL and its kin, or the answer if there is none.
type compiled struct {
	script  *script.Script
	problem string
}

// compile compiles the script of a call, or looks it up.
func (x *call) compile(y *call) *compiled {
	if isDigest := strings.HasPrefix(y.verb.name, "evalsha"); !isDigest {
		s, err := x.c.server.scripts.Get(x.c.ctx, y.args[1])
		return &compiled{s, compileProblem(err)}
	}
	s := x.c.server.scripts.Find(y.args[1])
	if s == nil {
		return &compiled{problem: errNoScript}
	}
	return &compiled{script: s}
}

// compileProblem returns the answer to a text that was not compiled; "" without an error.
func compileProblem(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, script.ErrBusy), errors.Is(err, context.Canceled):
		return "TRYAGAIN " + err.Error()
	}
	return "ERR Error compiling script (new function): " + err.Error()
}

// runEval answers EVAL, EVALSHA, EVAL_RO and EVALSHA_RO.
func runEval(x *call) {
	switch {
	case x.tx == nil:
		x.transact()
	case x.script.problem != "":
		x.out.Error(x.script.problem)
	default:
		x.runScript(x.script.script)
	}
}

// runScript answers with what a script returns.
func (x *call) runScript(s *script.Script) {
	rest := x.args[3:]
	switch n, ok := x.number(x.args[2], errNotInteger); {
	case !ok:
	case n < 0:
		x.out.Error("ERR Number of keys can't be negative")
	case n > int64(len(rest)):
		x.out.Error("ERR Number of keys can't be greater than number of args")
	default:
		host := scriptHost{of: x}
		defer host.free()
		err := x.tx.scripted(func() error { return s.Run(x.ctx, rest[:n], rest[n:], &host, x.out) })
		if err != nil {
			x.failScript(err)
		}
	}
}

// failScript answers with the error of a script.
func (x *call) failScript(err error) {
	var failed *script.Error
	switch {
	case errors.Is(err, tasks.ErrUnavailable), errors.Is(err, context.Canceled):
		x.fail(err)
	case errors.As(err, &failed):
		x.out.Error(failed.Answer)
	default:
		x.fail(err)
	}
}

// A scriptHost runs the commands of a script.
type scriptHost struct {
	of    *call
	out   resp.Writer // of the command under way
	taken int64       // bytes, of what the connection keeps
}

// inScripts are the verbs without a key that scripts may use.
var inScripts = []string{"echo", "ping", "publish", "time"}

// mayRun returns the answer to a command that no script may use; "" if it may.
func (h *scriptHost) mayRun(y *call) string {
	v := y.verb
	switch {
	case v == nil && hint(y.args[0]) != "":
		return "ERR Unknown Redis command called from script: " + hint(y.args[0])
	case v == nil:
		return "ERR Unknown Redis command called from script"
	case !v.takes(len(y.args)):
		return "ERR Wrong number of args calling Redis command from script"
	case !v.aboutKeys() && !slices.Contains(inScripts, v.name), v.isScript(), v.flags&(divides|notQueued) != 0:
		return "ERR This Redis command is not allowed from script"
	case (v.flags&writes != 0 || v.name == "publish") && h.of.verb.flags&writes == 0:
		return "ERR Write commands are not allowed from read-only scripts."
	}
	return y.denied()
}

func (h *scriptHost) Call(args [][]byte) []byte {
	x := h.of
	y := call{c: x.c, ctx: x.ctx, verb: lookup(args), args: args, out: &h.out, tx: x.tx}
	h.out.Buf = h.out.Buf[:0]
	switch refusal := h.mayRun(&y); {
	case refusal != "":
		h.out.Error(refusal)
	case y.verb.name == "publish":
		h.publish(string(args[1]), string(args[2]))
	default:
		y.verb.run(&y)
	}
	return h.out.Buf
}

// publish keeps a message, which is published once what the script has changed is written. How many
// subscribers get it is not known before.
func (h *scriptHost) publish(channel, text string) {
	x := h.of
	if problem := x.c.mayPublish(channel, text); problem != "" {
		h.out.Error(problem)
		return
	}
	r := &x.tx.runs[x.tx.at]
	r.told = append(r.told, telling{channel, text})
	h.out.Int(0)
}

func (h *scriptHost) Take(bytes int64) error {
	if !h.of.c.held.kept.Take(bytes) {
		return errDraftFull
	}
	h.taken += bytes
	return nil
}

func (h *scriptHost) free() { h.of.c.held.kept.Add(-h.taken) }

func (h *scriptHost) Log(text string) {
	h.of.c.server.log.Debug("a script says", slog.String("text", cut([]byte(text), longestLogged)))
}

// scriptVerbs returns the subcommands of SCRIPT.
func scriptVerbs() map[string]*verb {
	return index(
		&verb{name: "exists", arity: -3, scope: keyScope, run: runScriptExists},
		&verb{name: "flush", arity: -2, scope: edge.MayAdmin, run: runScriptFlush},
		&verb{name: "help", arity: 2, scope: edge.AnyRight, run: runScriptHelp},
		&verb{name: "kill", arity: 2, scope: keyScope, run: runScriptKill},
		&verb{name: "load", arity: 3, flags: divides, scope: keyScope, run: runScriptLoad},
	)
}

func runScriptLoad(x *call) {
	s, err := x.c.server.scripts.Get(x.c.ctx, x.args[2])
	if problem := compileProblem(err); problem != "" {
		x.out.Error(problem)
		return
	}
	x.out.Text(s.Digest)
}

func runScriptExists(x *call) {
	x.out.Array(len(x.args) - 2)
	for _, digest := range x.args[2:] {
		x.out.Flag(x.c.server.scripts.Find(digest) != nil)
	}
}

func runScriptFlush(x *call) {
	if len(x.args) > 3 || len(x.args) == 3 && !is(x.args[2], "sync") && !is(x.args[2], "async") {
		x.out.Error("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
		return
	}
	x.c.server.scripts.Forget()
	x.out.OK()
}

// runScriptKill answers SCRIPT KILL: no script runs longer than its bounds.
func runScriptKill(x *call) { x.out.Error("NOTBUSY No scripts in execution right now.") }

func runScriptHelp(x *call) {
	x.help("SCRIPT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"EXISTS <sha1> [<sha1> ...]", "    Return information about the existence of the scripts in the script cache.",
		"FLUSH [ASYNC|SYNC]", "    Flush the Lua scripts cache. Very dangerous on replicas.",
		"KILL", "    Kill the currently executing Lua script.",
		"LOAD <script>", "    Load a script into the scripts cache without executing it.")
}
