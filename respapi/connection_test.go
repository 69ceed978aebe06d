package respapi_test

import (
	"testing"

	"github.com/lapsehq/lapse/edge"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

func TestConnectionVerbs(t *testing.T) {
	w := newRig(t, Config{}, tasks.Config{}).dial()
	w.ask("+PONG", "PING")
	w.ask("hi", "ping", "hi")
	w.ask("a\r\nb", "ECHO", "a\r\nb")
	w.ask("+OK", "SELECT", "0")
	w.ask("-ERR DB index is out of range", "SELECT", "1")
	w.ask("-ERR wrong number of arguments for 'echo' command", "ECHO")
	w.ask("-ERR unknown command 'FOO', with args beginning with: 'a' 'b' ", "FOO", "a", "b")
	w.ask("-NOPROTO unsupported protocol version", "HELLO", "4")
	w.ask("*14 server redis version 7.0.15 proto :2 id :1 mode standalone role master modules *0", "HELLO")
	w.ask("%7 server redis version 7.0.15 proto :3 id :1 mode standalone role master modules *0", "HELLO", "3")
	w.send("PING\r\nECHO \"a b\"\r\n")
	if got := w.answer() + w.answer(); got != "+PONGa b" {
		t.Errorf("inline commands: the answers are %q", got)
	}
	w.ask("+RESET", "RESET")
	w.ask("+OK", "QUIT")
}

func TestTokens(t *testing.T) {
	read := edge.Token{Scopes: []edge.Scope{edge.ScopeRead}}
	callers := tokens(map[string]edge.Token{"secret": read})
	r := newRig(t, Config{Callers: callers}, tasks.Config{})
	w := r.dial()
	w.ask("-NOAUTH Authentication required.", "PING")
	w.ask("-WRONGPASS invalid username-password pair or user is disabled.", "AUTH", "wrong")
	w.ask("+OK", "AUTH", "default", "secret")
	w.ask("+PONG", "PING")
	setTokens(t, callers, map[string]edge.Token{"another": read})
	w.ask("-NOAUTH Authentication required.", "PING")
}

func TestTransactions(t *testing.T) {
	w := newRig(t, Config{}, tasks.Config{}).dial()
	w.ask("+OK", "MULTI")
	w.ask("+QUEUED", "PING")
	w.ask("-ERR MULTI calls can not be nested", "MULTI")
	w.ask("*1 +PONG", "EXEC")
	w.ask("+OK", "MULTI")
	w.ask("-ERR unknown command 'FOO', with args beginning with: ", "FOO")
	w.ask("-EXECABORT Transaction discarded because of previous errors.", "EXEC")
	w.ask("-ERR EXEC without MULTI", "EXEC")
}
