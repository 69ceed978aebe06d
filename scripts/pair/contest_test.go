package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

// costs is a scenario whose sides cost what the test says.
func costs(paths []string, cost func(s side, path string) (float64, error)) scenario {
	return scenario{"fake", paths, func(_ context.Context, l life) (samples []measure.Sample, err error) {
		for _, p := range paths {
			if !l.chosen.MatchString(p) {
				continue
			}
			if err := l.yield(); err != nil {
				return samples, err
			}
			c, err := cost(l.side, p)
			if err != nil {
				return samples, err
			}
			samples = append(samples, measure.Sample{Path: p, Cost: c})
		}
		return samples, nil
	}}
}

func newContest(t *testing.T, of ...scenario) *contest {
	return &contest{
		sides: [2]side{{name: "this"}, {name: "before"}}, dir: t.TempDir(), scenarios: of,
		chosen: regexp.MustCompile(""), pairs: 4, limit: 1.03, found: map[string]*path{},
	}
}

func TestContest(t *testing.T) {
	c := newContest(t, costs([]string{"same", "worse", "better", "added"}, func(s side, path string) (float64, error) {
		switch {
		case s.name == "this" && path == "worse":
			return 1.05, nil
		case s.name == "this" && path == "better":
			return 0.5, nil
		case s.name == "before" && path == "added":
			return 0, errors.New("unknown flag")
		}
		return 1, nil
	}))
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pair.csv")
	if err := c.write(file); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	err := c.print(&table)
	if err == nil || !strings.Contains(err.Error(), "[worse]") {
		t.Errorf("the verdict is %v", err)
	}
	if got := table.String(); strings.Contains(got, "added") || !strings.Contains(got, "1.050") || !strings.Contains(got, "0.500") {
		t.Errorf("the table is\n%s", got)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// The path that looks slower is measured three times.
	if got := strings.Count(string(raw), "\nworse,"); got != 24 {
		t.Errorf("%d lines of the path that is worse, want 24", got)
	}
	if got := strings.Count(string(raw), "\nsame,"); got != 8 {
		t.Errorf("%d lines of the path that is the same, want 8", got)
	}
}

// A path that looked slower, and is not the second time, is none that fails.
func TestAccident(t *testing.T) {
	runs := 0
	c := newContest(t, costs([]string{"p"}, func(s side, _ string) (float64, error) {
		if s.name == "this" {
			if runs++; runs <= 4 {
				return 1.2, nil
			}
			return 0.9, nil
		}
		return 1, nil
	}))
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.print(&strings.Builder{}); err != nil {
		t.Errorf("the verdict is %v", err)
	}
}

func TestFaults(t *testing.T) {
	c := newContest(t, costs([]string{"p"}, func(s side, _ string) (float64, error) {
		if s.name == "this" {
			return 0, errors.New("broken")
		}
		return 1, nil
	}))
	if err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a run that fails in this tree: %v", err)
	}
	c = newContest(t)
	c.chosen = regexp.MustCompile("nothing")
	if err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "-paths") {
		t.Errorf("no path is chosen: %v", err)
	}
}

// The other side does not go on when there is nothing to compare it with.
func TestOneSideFails(t *testing.T) {
	c := newContest(t, scenario{"fake", []string{"p"}, func(ctx context.Context, l life) ([]measure.Sample, error) {
		if l.name == "this" {
			return nil, errors.New("broken")
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}})
	if err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("%v", err)
	}
}

// What the harness prints is its samples and nothing else.
func TestFollow(t *testing.T) {
	for printed, want := range map[string]string{`{"path":"p"}`: "", `{"path":"p"} garbage`: "invalid character"} {
		samples, err := follow(exec.Command("echo", printed), func() error { return nil })
		if len(samples) != 1 || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", printed, samples, err)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "-base"},
		{"-base HEAD -pairs 2", "-pairs is 2; want 3 to 100"},
		{"-base HEAD -limit 0.5", "-limit is 0.5; want 1 to 10"},
		{"-base HEAD -paths (", "-paths: "},
	} {
		if err := run(t.Context(), strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}
