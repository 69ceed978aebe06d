package cli

import (
	"slices"
	"strings"
)

// reorderArgs converts usual forms of arguments to those of the grammar: lapse help [COMMAND]
// prints help, lapse --version is lapse version, and the flags of a server (--server and those
// beside it) may stand before the command, and between its two words.
func reorderArgs(args []string) []string {
	before, args := serverFlags(args)
	switch {
	case len(args) == 0:
		return nil
	case args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	case args[0] == "--version" && len(args) == 1:
		return []string{"version"}
	}
	between, rest := serverFlags(args[1:])
	if before = slices.Concat(before, between); len(before) == 0 {
		return args
	}
	args = append([]string{args[0]}, rest...)
	// The flags belong to the command, which may be two words. They are put after it.
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	return slices.Concat(args[:end], before, args[end:])
}

// serverFlags cuts the flags of a server off with which the arguments begin.
func serverFlags(args []string) (flags, rest []string) {
	n := 0
	for n < len(args) {
		is := serverFlag(args[n:])
		if is == 0 {
			break
		}
		n += is
	}
	return args[:n], args[n:]
}

// serverFlag returns how many of the arguments, from the first on, are a flag of a server.
func serverFlag(args []string) int {
	name, _, given := strings.Cut(args[0], "=")
	switch name {
	case "--json":
		return 1
	case "--server", "--token-from", "--ca-file", "--timeout":
		if given || len(args) == 1 {
			return 1
		}
		return 2
	}
	return 0
}
