package respapi

import (
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/respapi/internal/resp"
)

// clientVerbs returns the subcommands of CLIENT. They are about the own connection.
func clientVerbs() map[string]*verb {
	return index(
		&verb{name: "getname", arity: 2, scope: edge.AnyRight, run: runClientGetName},
		&verb{name: "getredir", arity: 2, scope: edge.AnyRight, run: func(x *call) { x.out.Int(-1) }},
		&verb{name: "help", arity: 2, scope: edge.AnyRight, run: runClientHelp},
		&verb{name: "id", arity: 2, scope: edge.AnyRight, run: func(x *call) { x.out.Int(x.c.id) }},
		&verb{name: "info", arity: 2, scope: edge.AnyRight, run: func(x *call) { x.out.Verbatim(x.c.describe()) }},
		&verb{name: "list", arity: -2, scope: edge.AnyRight, run: runClientList},
		&verb{name: "no-evict", arity: 3, scope: edge.AnyRight, run: runClientSwitch},
		&verb{name: "no-touch", arity: 3, scope: edge.AnyRight, run: runClientSwitch},
		&verb{name: "reply", arity: 3, flags: notQueued, scope: edge.AnyRight, run: runClientReply},
		&verb{name: "setinfo", arity: 4, scope: edge.AnyRight, run: runClientSetInfo},
		&verb{name: "setname", arity: 3, scope: edge.AnyRight, run: runClientSetName},
		&verb{name: "tracking", arity: -3, scope: edge.AnyRight, run: runClientTracking},
	)
}

func runClientGetName(x *call) {
	if name := x.c.shown.Load().name; name != "" {
		x.out.Text(name)
	} else {
		x.out.Null()
	}
}

func runClientSetName(x *call) {
	if x.setName(x.args[2]) {
		x.out.OK()
	}
}

// runClientSetInfo answers CLIENT SETINFO, with which a library says what it is.
func runClientSetInfo(x *call) {
	name, value := strings.ToLower(string(x.args[2])), string(x.args[3])
	for i := range len(value) {
		if value[i] < '!' || value[i] > '~' {
			x.out.Error("ERR " + name + " cannot contain spaces, newlines or special characters.")
			return
		}
	}
	switch {
	case len(value) > 256:
		x.out.Error("ERR " + name + " must be at most 256 characters long")
	case name == "lib-name":
		x.c.change(func(s *shown) { s.library = value })
		x.out.OK()
	case name == "lib-ver":
		x.c.change(func(s *shown) { s.version = value })
		x.out.OK()
	default:
		x.out.Error("ERR Unrecognized option '" + cut(x.args[2], 128) + "'")
	}
}

// runClientSwitch answers CLIENT NO-EVICT and NO-TOUCH. Neither clients nor keys are evicted, so
// they change nothing.
func runClientSwitch(x *call) {
	if !is(x.args[2], "on") && !is(x.args[2], "off") {
		x.out.Error(errSyntax)
		return
	}
	x.out.OK()
}

// runClientReply answers CLIENT REPLY ON. OFF and SKIP have no answers.
func runClientReply(x *call) {
	switch {
	case is(x.args[2], "on"):
		x.c.silence = loud
		x.out.OK()
	case is(x.args[2], "off"):
		x.c.silence = off
	case is(x.args[2], "skip"):
		if x.c.silence != off {
			x.c.silence = skipNext
		}
	default:
		x.out.Error(errSyntax)
	}
}

// runClientTracking answers CLIENT TRACKING, which can only be off.
func runClientTracking(x *call) {
	switch {
	case is(x.args[2], "off"):
		x.out.OK()
	case is(x.args[2], "on"):
		x.out.Error("ERR Client tracking is not supported")
	default:
		x.out.Error(errSyntax)
	}
}

// runClientList answers CLIENT LIST [TYPE type] [ID id ...]: the own connection, if it is selected.
func runClientList(x *call) {
	shown := true
	switch rest := x.args[2:]; {
	case len(rest) == 0:
	case is(rest[0], "type") && len(rest) == 2:
		subscriber := x.c.subscribed > 0
		switch {
		case is(rest[1], "normal"):
			shown = !subscriber
		case is(rest[1], "pubsub"):
			shown = subscriber
		case is(rest[1], "master"), is(rest[1], "replica"), is(rest[1], "slave"):
			shown = false
		default:
			x.out.Error("ERR Unknown client type '" + cut(rest[1], 128) + "'")
			return
		}
	case is(rest[0], "id") && len(rest) > 1:
		shown = false
		for _, text := range rest[1:] {
			id, ok := resp.ParseInt(text)
			if !ok || id <= 0 {
				x.out.Error("ERR Invalid client ID")
				return
			}
			shown = shown || id == x.c.id
		}
	default:
		x.out.Error(errSyntax)
		return
	}
	text := ""
	if shown {
		text = x.c.describe()
	}
	x.out.Verbatim(text)
}

// describe returns the line of CLIENT LIST about the connection, with the fields of Redis that mean
// something here.
func (c *conn) describe() string {
	now, s := time.Now(), c.shown.Load()
	flags, resp, did := "N", 2, ""
	if c.subscribed > 0 {
		flags = "P"
	}
	if s.three {
		resp = 3
	}
	if v := c.lastDid.Load(); v != nil {
		did = v.fullName()
	}
	idle := now.Sub(time.Unix(0, c.last.Load()))
	channels, patterns := len(c.subs.channels), len(c.subs.patterns)
	return fmt.Sprintf("id=%d addr=%s laddr=%s name=%s age=%d idle=%d flags=%s db=0 sub=%d psub=%d ssub=0 multi=-1 cmd=%s user=%s redir=-1 resp=%d lib-name=%s lib-ver=%s\n",
		c.id, c.nc.RemoteAddr(), c.nc.LocalAddr(), s.name, int(now.Sub(c.since).Seconds()), int(idle.Seconds()), flags,
		channels, patterns, did, c.caller.Name, resp, s.library, s.version)
}

func runClientHelp(x *call) {
	x.help("CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"GETREDIR", "    Return -1: tracking is not supported.",
		"GETNAME", "    Return the name of the current connection.",
		"ID", "    Return the ID of the current connection.",
		"INFO", "    Return information about the current client connection.",
		"LIST [options ...]", "    Return information about the current client connection. Options:",
		"    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)", "      Return it if it is of the specified type.",
		"    * ID <client-id> [<client-id> ...]", "      Return it if it has one of these IDs.",
		"NO-EVICT (ON|OFF)", "    Change nothing: no client is evicted.",
		"NO-TOUCH (ON|OFF)", "    Change nothing: no key is evicted.",
		"REPLY (ON|OFF|SKIP)", "    Control the replies sent to the current connection.",
		"SETINFO (LIB-NAME|LIB-VER) <value>", "    Say which library the client uses.",
		"SETNAME <name>", "    Assign the name <name> to the current connection.",
		"TRACKING OFF", "    Change nothing: tracking is not supported.")
}

// help answers the HELP of a verb with subcommands.
func (x *call) help(lines ...string) {
	lines = append(lines, "HELP", "    Prints this help.")
	x.out.Array(len(lines))
	for _, line := range lines {
		x.out.Simple(line)
	}
}
