package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pair:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("pair", flag.ContinueOnError)
	base := flags.String("base", "", "commit to compare with, or a directory that holds a checkout")
	pairs := flags.Int("pairs", 10, "pairs of runs of each path, 3 to 100")
	paths := flags.String("paths", "", "regular expression for the paths, such as 'burst' or '/disk$'; all by default")
	limit := flags.Float64("limit", 1.03, "ratio past which a path counts as slower, 1 to 10")
	out := flags.String("out", "bench", "directory of pair.csv, and of the data of runs meanwhile")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := regexp.Compile(*paths)
	switch {
	case err != nil:
		return fmt.Errorf("-paths: %w", err)
	case *base == "":
		return errors.New("-base: name a commit")
	case *pairs < 3 || *pairs > 100:
		return fmt.Errorf("-pairs is %d; want 3 to 100", *pairs)
	case *limit < 1 || *limit > 10:
		return fmt.Errorf("-limit is %v; want 1 to 10", *limit)
	}
	if *out, err = filepath.Abs(*out); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(*out, "pair-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	sides, err := build(ctx, *base, work)
	if err != nil {
		return err
	}
	c := &contest{sides: sides, dir: work, scenarios: all, chosen: chosen, pairs: *pairs, limit: *limit, found: map[string]*path{}}
	if err := c.run(ctx); err != nil {
		return err
	}
	if err := c.write(filepath.Join(*out, "pair.csv")); err != nil {
		return err
	}
	return c.print(os.Stdout)
}
