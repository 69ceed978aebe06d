package respapi

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/edge"
)

// commandVerbs returns the subcommands of COMMAND.
func commandVerbs() map[string]*verb {
	return index(
		&verb{name: "count", arity: 2, scope: edge.AnyRight, run: func(x *call) { x.out.Int(int64(len(verbs))) }},
		&verb{name: "docs", arity: -2, scope: edge.AnyRight, run: runCommandDocs},
		&verb{name: "getkeys", arity: -4, scope: edge.AnyRight, run: runCommandGetKeys},
		&verb{name: "help", arity: 2, scope: edge.AnyRight, run: runCommandHelp},
		&verb{name: "info", arity: -2, scope: edge.AnyRight, run: runCommandInfo},
		&verb{name: "list", arity: -2, scope: edge.AnyRight, run: runCommandList},
	)
}

// runCommand answers COMMAND: all verbs.
func runCommand(x *call) {
	x.out.Array(len(verbs))
	for _, name := range names() {
		x.describe(verbs[name])
	}
}

func runCommandInfo(x *call) {
	if len(x.args) == 2 {
		runCommand(x)
		return
	}
	x.out.Array(len(x.args) - 2)
	for _, name := range x.args[2:] {
		if v := named(name); v != nil {
			x.describe(v)
		} else {
			x.out.Null()
		}
		x.c.spill()
	}
}

// named returns the verb with a full name, such as get or config|get; nil if there is none.
func named(name []byte) *verb {
	parent, sub, has := strings.Cut(strings.ToLower(string(name)), "|")
	v := verbs[parent]
	if v != nil && has {
		return v.subs[sub]
	}
	return v
}

// describe answers what COMMAND INFO tells of a verb.
func (x *call) describe(v *verb) {
	x.out.Array(10)
	x.out.Text(v.fullName())
	x.out.Int(int64(v.arity))
	x.out.Set(len(v.flagWords()))
	for _, word := range v.flagWords() {
		x.out.Simple(word)
	}
	first, last, step := v.first, v.last, v.step
	if v.numbered { // they stand elsewhere in each command
		first, last, step = 0, 0, 0
	}
	x.out.Int(int64(first))
	x.out.Int(int64(last))
	x.out.Int(int64(step))
	x.out.Set(len(v.categories()))
	for _, word := range v.categories() {
		x.out.Simple("@" + word)
	}
	x.out.Set(0) // tips
	x.out.Set(0) // specifications of keys
	x.out.Array(len(v.subs))
	for _, name := range slices.Sorted(maps.Keys(v.subs)) {
		x.describe(v.subs[name])
	}
}

// flagWords returns the flags of a verb as Redis names them.
func (v *verb) flagWords() (words []string) {
	add := func(yes bool, word string) {
		if yes {
			words = append(words, word)
		}
	}
	if v.subs != nil && v.run == nil {
		return nil
	}
	add(v.flags&writes != 0, "write")
	add(v.readsKeys(), "readonly")
	add(v.scope == edge.MayAdmin, "admin")
	add(v.flags&pushes != 0, "pubsub")
	add(v.flags&blocks != 0, "blocking")
	add(v.flags&needsTasks == 0, "loading")
	add(v.flags&needsTasks == 0, "stale")
	add(v.numbered, "movablekeys")
	add(v.flags&fast != 0, "fast")
	add(v.flags&noAuth != 0, "no_auth")
	return words
}

func (v *verb) readsKeys() bool { return v.flags&needsTasks != 0 && v.flags&writes == 0 }

// categories returns the categories of a verb for access control lists, as Redis names them.
func (v *verb) categories() (words []string) {
	switch {
	case v.flags&writes != 0:
		words = append(words, "write")
	case v.readsKeys():
		words = append(words, "read")
	}
	root := v
	if v.parent != nil {
		root = v.parent
	}
	switch group := descriptions[root.name].group; group {
	case "generic":
		words = append(words, "keyspace")
	case "string", "stream", "pubsub", "connection":
		words = append(words, group)
	case "scripting":
		words = append(words, "scripting")
	case "transactions":
		words = append(words, "transaction")
	}
	if v.scope == edge.MayAdmin {
		words = append(words, "admin", "dangerous")
	}
	if v.flags&fast != 0 {
		words = append(words, "fast")
	} else {
		words = append(words, "slow")
	}
	if v.flags&blocks != 0 {
		words = append(words, "blocking")
	}
	return words
}

// runCommandDocs answers COMMAND DOCS [name ...], with which redis-cli explains commands.
func runCommandDocs(x *call) {
	var found []*verb
	if len(x.args) == 2 {
		for _, name := range names() {
			found = append(found, verbs[name])
		}
	}
	for _, name := range x.args[2:] {
		if v := named(name); v != nil && !slices.Contains(found, v) && len(found) < len(verbs) {
			found = append(found, v)
		}
	}
	x.out.Map(len(found))
	for _, v := range found {
		x.out.Text(v.fullName())
		d := descriptions[v.name]
		if v.parent != nil {
			d = descriptions[v.parent.name]
		}
		x.out.Map(3)
		for _, field := range [...][2]string{{"summary", d.summary}, {"since", d.since}, {"group", d.group}} {
			x.out.Text(field[0])
			x.out.Text(field[1])
		}
	}
}

// runCommandGetKeys answers COMMAND GETKEYS: the arguments of a command that are keys.
func runCommandGetKeys(x *call) {
	args := x.args[2:]
	v := lookup(args)
	switch {
	case v == nil:
		x.out.Error("ERR Invalid command specified")
		return
	case v.first == 0:
		x.out.Error("ERR The command has no key arguments")
		return
	case !v.takes(len(args)):
		x.out.Error("ERR Invalid number of arguments specified for command")
		return
	}
	keys := v.keysOf(args)
	x.out.Array(len(keys))
	for _, key := range keys {
		x.out.Bulk(key)
	}
}

// runCommandList answers COMMAND LIST [FILTERBY MODULE|ACLCAT|PATTERN value].
func runCommandList(x *call) {
	keep := func(*verb) bool { return true }
	switch rest := x.args[2:]; {
	case len(rest) == 0:
	case len(rest) != 3 || !is(rest[0], "filterby"):
		x.out.Error(errSyntax)
		return
	case is(rest[1], "module"):
		keep = func(*verb) bool { return false }
	case is(rest[1], "aclcat"):
		category := strings.ToLower(string(rest[2]))
		keep = func(v *verb) bool { return slices.Contains(v.categories(), category) }
	case is(rest[1], "pattern"):
		pattern, ok := x.pattern(bytes.ToLower(rest[2]))
		if !ok {
			return
		}
		keep = func(v *verb) bool { return pattern.Match(v.fullName()) }
	default:
		x.out.Error(errSyntax)
		return
	}
	var list []string
	for _, name := range names() {
		v := verbs[name]
		for _, sub := range slices.Sorted(maps.Keys(v.subs)) {
			if len(x.args) > 2 && keep(v.subs[sub]) {
				list = append(list, v.subs[sub].fullName())
			}
		}
		if keep(v) {
			list = append(list, name)
		}
	}
	x.out.Array(len(list))
	for _, name := range list {
		x.out.Text(name)
	}
}

func runCommandHelp(x *call) {
	x.help("COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"(no subcommand)", "    Return details about all commands.",
		"COUNT", "    Return the total number of commands.",
		"LIST [FILTERBY (MODULE <module>|ACLCAT <category>|PATTERN <pattern>)]", "    Return a list of all commands, or of some.",
		"INFO [<command-name> ...]", "    Return details about multiple commands.",
		"DOCS [<command-name> ...]", "    Return documentation details about multiple commands.",
		"GETKEYS <full-command>", "    Return the keys from a full command.")
}
