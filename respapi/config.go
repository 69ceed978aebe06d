package respapi

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/lapsehq/lapse/edge"
)

const notifyParameter = "notify-keyspace-events"

// A parameter is one of CONFIG.
type parameter struct {
	name  string
	value func(*Server) string
}

// parameters are those of Redis that mean something here, by name.
var parameters = []parameter{
	{"appendonly", always("yes")},
	{"cluster-enabled", always("no")},
	{"databases", always("1")},
	{"maxclients", func(s *Server) string { return strconv.Itoa(s.cfg.MaxConnections) }},
	{"maxmemory", always("0")},
	{"maxmemory-policy", always("noeviction")},
	{notifyParameter, func(s *Server) string { return s.hub.getFlags().String() }},
	{"proto-max-bulk-len", func(s *Server) string { return strconv.Itoa(s.mostValue()) }},
	{"save", always("")},
	{"timeout", always("0")},
}

func always(value string) func(*Server) string { return func(*Server) string { return value } }

// mostValue returns how many bytes a value may have, as far as that is known yet.
func (s *Server) mostValue() int {
	most := min(s.cfg.MaxCommand, s.cfg.MaxValue)
	if scheduler := s.scheduler.Load(); scheduler != nil {
		return min(most, scheduler.Admin().MaxPayload())
	}
	return most
}

// runConfigGet answers CONFIG GET with the parameters that match a pattern, each of them once.
func runConfigGet(x *call) {
	wanted := make([]bool, len(parameters))
	for _, text := range x.args[2:] {
		pattern, ok := x.pattern(bytes.ToLower(text))
		if !ok {
			return
		}
		for i, p := range parameters {
			wanted[i] = wanted[i] || pattern.Match(p.name)
		}
	}
	var found []parameter
	for i, p := range parameters {
		if wanted[i] {
			found = append(found, p)
		}
	}
	x.out.Map(len(found))
	for _, p := range found {
		x.out.Text(p.name)
		x.out.Text(p.value(x.c.server))
	}
}

// runConfigSet answers CONFIG SET. notify-keyspace-events is what can be set. It changes what the
// subscribers of this node get, so another value than the one that holds needs the scope admin.
func runConfigSet(x *call) {
	s, args := x.c.server, x.args[2:]
	if len(args)%2 != 0 {
		x.out.Error("ERR wrong number of arguments for 'config|set' command")
		return
	}
	failed := func(name, problem string) {
		x.out.Error("ERR CONFIG SET failed (possibly related to argument '" + name + "') - " + problem)
	}
	flags, given := classes(0), false
	for i := 0; i < len(args); i += 2 {
		name := strings.ToLower(string(args[i]))
		p, ok := findParameter(name)
		var legal bool
		switch {
		case !ok:
			x.out.Error("ERR Unknown option or number of arguments for CONFIG SET - '" + cut(args[i], 128) + "'")
			return
		case name != notifyParameter && p.value(s) == string(args[i+1]):
			continue // as it is
		case name != notifyParameter:
			failed(name, "can't set immutable config")
			return
		case given:
			failed(name, "duplicate parameter")
			return
		}
		if flags, legal = parseClasses(string(args[i+1])); !legal {
			failed(name, "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
			return
		}
		given = true
	}
	switch {
	case given && flags == s.hub.getFlags():
	case !x.c.caller.Rights.Open(edge.MayAdmin):
		x.out.Error("NOPERM this token has no permissions to run the 'config|set' command")
		return
	case given:
		s.hub.setFlags(flags)
	}
	x.out.OK()
}

func findParameter(name string) (p parameter, ok bool) {
	for _, p := range parameters {
		if p.name == name {
			return p, true
		}
	}
	return p, false
}

// configVerbs are the subcommands of CONFIG.
func configVerbs() map[string]*verb {
	return index(
		&verb{name: "get", arity: -3, scope: edge.AnyRight, run: runConfigGet},
		&verb{name: "set", arity: -4, scope: edge.AnyRight, run: runConfigSet},
		&verb{name: "help", arity: 2, scope: edge.AnyRight, run: help(
			"CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
			"GET <pattern>",
			"    Return parameters matching the glob-like <pattern> and their values.",
			"SET <directive> <value>",
			"    Set the configuration <directive> to <value>.",
			"HELP",
			"    Prints this help.",
		)},
	)
}
