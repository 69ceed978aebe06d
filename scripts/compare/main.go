package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/cli/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		stop()
		os.Exit(1)
	}
}

// run measures and writes. Servers and directories of a run end with it, also when
// it is interrupted; the page is written only by a run that came to its end.
func run(ctx context.Context) error {
	rounds := flag.Int("rounds", 5, "rounds of each row")
	tasks := flag.Int("tasks", 100_000, "tasks of a row; the burst of a million has ten times as many")
	duration := flag.Duration("duration", 5*time.Second, "of the steady rate")
	binary := flag.String("lapse", "", "the lapse binary")
	out := flag.String("out", "", "root of the repository: bench/comparison.md and docs/comparison.svg are written")
	only := flag.String("only", "", "regular expression for the rows: channel, single, synced, port, batch, burst, million, second, steady, among")
	entrants := flag.String("entrants", "", "regular expression for those that take part")
	version := flag.String("version", "", "of Lapse, for the page")
	flag.Parse()
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	taking, err := regexp.Compile(*entrants)
	if err != nil {
		return fmt.Errorf("-entrants: %w", err)
	}
	if *rounds < 1 || *tasks < 1000 || *duration < time.Second || *binary == "" || *out == "" {
		return errors.New("want -lapse FILE, -out DIR, -rounds of at least 1, -tasks of at least 1000 and a -duration of at least 1s")
	}
	z := sizes{
		tasks: *tasks, duration: *duration, binary: *binary,
		million: os.Getenv("LAPSE_COMPARE_1M") != "", among: os.Getenv("LAPSE_COMPARE_5M") != "",
	}
	if _, err := exec.LookPath("redis-server"); err == nil {
		redis, err := startRedis(ctx)
		if err != nil {
			return err
		}
		defer redis.stop()
		synced, err := startRedis(ctx, "--appendfsync", "always")
		if err != nil {
			return err
		}
		defer synced.stop()
		z.redisAddr, z.syncedAddr = redis.addr, synced.addr
	}
	c := comparison{
		when: time.Now(), rounds: *rounds, machine: bench.ThisMachine(), versions: versions(ctx, *version), command: command(*rounds, *tasks, *duration, *only, *entrants, z),
	}
	for _, r := range matrix(z) {
		r.entrants = slices.DeleteFunc(r.entrants, func(e entrant) bool { return !taking.MatchString(e.name) })
		if chosen.MatchString(r.key) && len(r.entrants) > 0 {
			c.rankings = append(c.rankings, r.run(ctx, *rounds, os.Stderr))
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errors.Join(c.save(*out), c.broken())
}

// command is the command line that repeats the run.
func command(rounds, tasks int, duration time.Duration, only, entrants string, z sizes) string {
	text := "make bench-compare COMPARE_FLAGS=\"" + fmt.Sprintf("-rounds %d -tasks %d -duration %v", rounds, tasks, duration)
	if only != "" {
		text += " -only '" + only + "'"
	}
	if entrants != "" {
		text += " -entrants '" + entrants + "'"
	}
	text += "\""
	if z.million {
		text = "LAPSE_COMPARE_1M=1 " + text
	}
	if z.among {
		text = "LAPSE_COMPARE_5M=1 " + text
	}
	return text
}

// versions of everything that takes part.
func versions(ctx context.Context, lapse string) []string {
	all := []string{"Lapse " + lapse}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/hibiken/asynq" {
				all = append(all, "asynq "+m.Version)
			}
		}
	}
	said := func(program, flag string) string {
		text, err := exec.CommandContext(ctx, program, flag).Output()
		if err != nil {
			return ""
		}
		return string(text)
	}
	if _, v, ok := strings.Cut(said("redis-server", "--version"), "v="); ok {
		all = append(all, "Redis "+strings.Fields(v)[0])
	}
	if v := strings.TrimSpace(said("beanstalkd", "-v")); v != "" {
		all = append(all, v)
	}
	return all
}

func (c *comparison) save(dir string) error {
	page := filepath.Join(dir, "bench", "comparison.md")
	old, err := os.ReadFile(page)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "docs", "comparison.svg"))
	if err != nil {
		return err
	}
	return errors.Join(c.chart(f), f.Close(), os.WriteFile(page, []byte(c.into(string(old))), 0o644))
}

// broken is an error if Lapse failed, or broke a promise. Failures of peers are on the page.
func (c *comparison) broken() error {
	var all []error
	for i := range c.rankings {
		k := &c.rankings[i]
		for j := range k.outcomes {
			o := &k.outcomes[j]
			if !o.lapse {
				continue
			}
			if o.failed != nil {
				all = append(all, fmt.Errorf("%s: %s: %w", k.key, o.name, o.failed))
			}
			if o.faults().Broken() {
				all = append(all, fmt.Errorf("%w: %s: %s: %+v", bench.ErrBroken, k.key, o.name, o.faults()))
			}
		}
	}
	return errors.Join(all...)
}
