package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

//go:embed mutants.txt
var list string

func main() {
	root := flag.String("root", ".", "the `directory` of the repository")
	check := flag.Bool("check", false, "only say which entries do not apply")
	show := flag.Bool("list", false, "only print the entries")
	file := flag.String("file", "", "only faults in files whose paths have this `text`")
	promise := flag.String("promise", "", "only faults that break the promise of this `number`")
	state := flag.String("state", filepath.Join(os.TempDir(), "lapse-mutants.json"), "the `file` that keeps results from one run to the next")
	again := flag.Bool("again", false, "try also what has a result")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: mutants [flags] [number | from-to] ...\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ok, err := run(ctx, options{
		root: *root, check: *check, show: *show, state: *state, again: *again,
		chosen: func(m *mutant) bool {
			return strings.Contains(m.file, *file) && (*promise == "" || m.promise == *promise) && isNumbered(m.number, flag.Args())
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if !ok || err != nil {
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// isNumbered reports whether a number is among some, or some is empty.
func isNumbered(n int, some []string) bool {
	return len(some) == 0 || slices.ContainsFunc(some, func(one string) bool {
		from, to, isRange := strings.Cut(one, "-")
		low, err := strconv.Atoi(from)
		high := low
		if isRange && err == nil {
			high, err = strconv.Atoi(to)
		}
		return err == nil && low <= n && n <= high
	})
}
