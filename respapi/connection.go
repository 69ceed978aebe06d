package respapi

import (
	"strconv"
	"time"
)

// runHello answers HELLO [version [AUTH user password] [SETNAME name]].
func runHello(x *call) {
	c, three := x.c, x.out.Three
	rest := x.args[1:]
	if len(rest) > 0 {
		version, ok := x.number(rest[0], "ERR Protocol version is not an integer or out of range")
		switch {
		case !ok:
			return
		case version != 2 && version != 3:
			x.out.Error("NOPROTO unsupported protocol version")
			return
		}
		three, rest = version == 3, rest[1:]
	}
	var name []byte
	for len(rest) > 0 {
		switch {
		case is(rest[0], "auth") && len(rest) >= 3:
			if !x.signIn(rest[2]) {
				return
			}
			rest = rest[3:]
		case is(rest[0], "setname") && len(rest) >= 2:
			name, rest = rest[1], rest[2:]
		default:
			x.out.Error("ERR Syntax error in HELLO option '" + cut(rest[0], 128) + "'")
			return
		}
	}
	if c.caller == nil {
		x.out.Error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return
	}
	if name != nil && !x.setName(name) {
		return
	}
	c.answer.Three, x.out.Three = three, three
	c.change(func(s *shown) { s.three = three })
	x.out.Map(7)
	x.out.Text("server")
	x.out.Text("redis")
	x.out.Text("version")
	x.out.Text(redisVersion)
	x.out.Text("proto")
	if three {
		x.out.Int(3)
	} else {
		x.out.Int(2)
	}
	x.out.Text("id")
	x.out.Int(c.id)
	x.out.Text("mode")
	x.out.Text("standalone")
	x.out.Text("role")
	x.out.Text("master")
	x.out.Text("modules")
	x.out.Array(0)
	c.tellHub()
}

// redisVersion is the version of Redis whose answers the verbs have. Clients decide by it which
// verbs they may use.
const redisVersion = "7.0.15"

// setName names the connection. It answers and reports false if the name cannot be one.
func (x *call) setName(name []byte) bool {
	for _, c := range name {
		if c < '!' || c > '~' {
			x.out.Error("ERR Client names cannot contain spaces, newlines or special characters.")
			return false
		}
	}
	if len(name) > 256 {
		x.out.Error("ERR Client names must be at most 256 characters long")
		return false
	}
	text := string(name)
	x.c.change(func(s *shown) { s.name = text })
	return true
}

// signIn says who the client is. It answers and reports false if there is no such token, or it has
// too many connections.
func (x *call) signIn(password []byte) bool {
	if x.c.server.cfg.Callers == nil {
		return true // as the user default of Redis, who needs no password
	}
	if problem := x.c.authenticate(password); problem != "" {
		x.out.Error(problem)
		return false
	}
	x.c.readUntil(time.Time{})
	return true
}

// runAuth answers AUTH [user] password. Any user will do: the password is the token.
func runAuth(x *call) {
	switch {
	case len(x.args) > 3:
		x.out.Error(errSyntax)
	case len(x.args) == 2 && x.c.server.cfg.Callers == nil:
		x.out.Error("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
	case x.signIn(x.args[len(x.args)-1]):
		x.out.OK()
	}
}

func runPing(x *call) {
	switch {
	case len(x.args) > 2:
		x.out.Error("ERR wrong number of arguments for 'ping' command")
	case x.c.subscribed > 0 && !x.out.Three:
		x.out.Array(2)
		x.out.Text("pong")
		if len(x.args) == 2 {
			x.out.Bulk(x.args[1])
		} else {
			x.out.Text("")
		}
	case len(x.args) == 2:
		x.out.Bulk(x.args[1])
	default:
		x.out.Simple("PONG")
	}
}

func runEcho(x *call) { x.out.Bulk(x.args[1]) }

// runSelect answers SELECT. There is one database, 0.
func runSelect(x *call) {
	n, ok := x.number(x.args[1], errNotInteger)
	switch {
	case !ok:
	case n != int64(int32(n)):
		x.out.Error("ERR value is out of range, value must between -2147483648 and 2147483647")
	case n != 0:
		x.c.elsewhere = true
		x.out.Error("ERR DB index is out of range")
	default:
		x.c.elsewhere = false
		x.out.OK()
	}
}

func runQuit(x *call) {
	x.c.ending = true
	x.out.OK()
}

// runReset answers RESET: the connection is as it was when it began.
func runReset(x *call) {
	c := x.c
	c.forget()
	c.silence, c.elsewhere = loud, false
	c.unsubscribeAll()
	c.answer.Three = false
	c.change(func(s *shown) { s.name, s.three = "", false })
	if c.server.cfg.Callers != nil {
		c.setCaller(nil)
	}
	x.out.Simple("RESET")
}

func runTime(x *call) {
	now := time.Now()
	x.out.Array(2)
	x.out.Text(strconv.FormatInt(now.Unix(), 10))
	x.out.Text(strconv.Itoa(now.Nanosecond() / 1000))
}
