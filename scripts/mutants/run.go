package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Verdicts.
const (
	killed   = "killed"
	survived = "survived"
	same     = "changes nothing"
	noPlace  = "does not apply"
	noBuild  = "does not build"
	unusable = "tests fail without it"
)

// A result is what has become of a mutant.
type result struct {
	Verdict string `json:"verdict"`
	Why     string `json:"why,omitempty"`
}

type options struct {
	root, state        string
	check, show, again bool
	chosen             func(*mutant) bool
}

// leastTime and mostTime bound how long the tests of a mutant may take: a machine has other work as
// well, and a fault may make a test wait for ever.
const leastTime, mostTime = 2 * time.Minute, 15 * time.Minute

// A runner tries mutants.
type runner struct {
	options
	known map[string]result // by key
	all   []*mutant         // that were chosen
}

// run does what the options say. It reports whether nothing is wrong with the list and the tests.
func run(ctx context.Context, o options) (bool, error) {
	all, err := parse(list)
	if err != nil {
		return false, err
	}
	var errRoot error
	if o.root, errRoot = filepath.Abs(o.root); errRoot != nil {
		return false, errRoot
	}
	r := &runner{options: o, known: map[string]result{}}
	for _, m := range all {
		if o.chosen(m) {
			r.all = append(r.all, m)
		}
	}
	if o.show {
		for _, m := range r.all {
			fmt.Printf("%v\n     %s %s\n     - %s\n     + %s\n", m, m.pkg, m.run, m.from, m.to)
		}
		return true, nil
	}
	if o.check {
		return r.check(), nil
	}
	if text, err := os.ReadFile(o.state); err == nil {
		if err := json.Unmarshal(text, &r.known); err != nil {
			return false, fmt.Errorf("%s: %w", o.state, err)
		}
	}
	var todo []*mutant
	for _, m := range r.all {
		switch res, known := r.known[m.key()]; {
		case m.same != "":
			r.note(m, result{same, m.same})
		case applies(o.root, m) != nil:
			r.note(m, result{noPlace, applies(o.root, m).Error()})
		case known && !o.again && res.Verdict == killed:
		default:
			todo = append(todo, m)
		}
	}
	for len(todo) > 0 && ctx.Err() == nil {
		pkg := todo[0].pkg
		var now []*mutant
		todo = slices.DeleteFunc(todo, func(m *mutant) bool {
			if m.pkg == pkg {
				now = append(now, m)
			}
			return m.pkg == pkg
		})
		if err := r.tryAll(ctx, pkg, now); err != nil {
			return false, err
		}
	}
	return r.summary(), ctx.Err()
}

// applies returns why a mutant cannot be planted, or nil.
func applies(root string, m *mutant) error {
	s, err := load(root, m.file)
	if err != nil {
		return err
	}
	text, err := s.planted(m)
	if err != nil {
		return err
	}
	_, err = read(m.file, []byte(text))
	return err
}

// check prints which mutants do not apply. It reports whether all do.
func (r *runner) check() bool {
	ok := true
	for _, m := range r.all {
		if err := applies(r.root, m); err != nil {
			fmt.Printf("%v: %s: %v\n", m, noPlace, err)
			ok = false
		}
	}
	fmt.Println(len(r.all), "entries")
	return ok
}

// note keeps and prints a result.
func (r *runner) note(m *mutant, res result) {
	if r.known[m.key()] != res {
		r.known[m.key()] = res
		if text, err := json.MarshalIndent(r.known, "", " "); err == nil {
			_ = os.WriteFile(r.state, text, 0o600) // without it the next run tries more
		}
	}
	fmt.Printf("%-15s %v\n", res.Verdict, m)
	if res.Why != "" && res.Verdict != same {
		fmt.Printf("%-15s %s\n", "", res.Why)
	}
}

// tryAll tries the mutants that the tests of one package should notice.
func (r *runner) tryAll(ctx context.Context, pkg string, mutants []*mutant) error {
	dir, err := os.MkdirTemp("", "lapse-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var inFuncs, alone []*mutant
	for _, m := range mutants {
		s, err := load(r.root, m.file)
		if err != nil {
			return err
		}
		if _, f, _ := s.find(m); f != nil {
			inFuncs = append(inFuncs, m)
		} else {
			alone = append(alone, m)
		}
	}
	binary := filepath.Join(dir, "tests")
	left, err := buildSwitched(ctx, r.root, pkg, binary, dir, inFuncs, r.note)
	if err != nil {
		return err
	}
	times := map[string]time.Duration{} // of the expressions, without a fault; 0: they fail
	for _, m := range slices.Concat(left, alone) {
		if _, tried := times[m.run]; !tried {
			began := time.Now()
			out, err := r.test(ctx, binary, m, 0, 10*time.Minute)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if times[m.run] = max(time.Since(began), 1); err != nil || bytes.Contains(out, []byte("no tests to run")) {
				times[m.run] = 0
				fmt.Printf("%s %s fails without a fault: %v\n%s\n", pkg, m.run, err, out)
			}
		}
		switch number, binary := m.number, binary; {
		case times[m.run] == 0:
			r.note(m, result{Verdict: unusable})
		case slices.Contains(alone, m):
			number, binary = 0, filepath.Join(dir, "alone")
			if err := r.buildAlone(ctx, m, dir, binary); err != nil {
				r.note(m, result{noBuild, firstLine(err.Error(), ".go:")})
				continue
			}
			fallthrough
		default:
			out, err := r.test(ctx, binary, m, number, min(max(leastTime, 20*times[m.run]), mostTime))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err == nil {
				r.note(m, result{Verdict: survived})
			} else {
				r.note(m, result{killed, firstLine(string(out), "--- FAIL", "panic:")})
			}
		}
	}
	return nil
}

func (r *runner) buildAlone(ctx context.Context, m *mutant, dir, binary string) error {
	s, err := load(r.root, m.file)
	if err != nil {
		return err
	}
	text, err := s.planted(m)
	if err != nil {
		return err
	}
	p := newPatch(dir)
	if err := p.add(filepath.Join(r.root, m.file), text); err != nil {
		return err
	}
	return p.build(ctx, r.root, m.pkg, binary)
}

// quiet keeps package rapid from writing what has failed into testdata. Tests without that package
// do not know the flag.
const quiet = "-rapid.nofailfile"

// test runs the tests of a mutant. The error is nil if they pass.
func (r *runner) test(ctx context.Context, binary string, m *mutant, number int, most time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, most+10*time.Second)
	defer cancel()
	args := []string{"-test.run", m.run, "-test.short", "-test.failfast", "-test.timeout", most.String()}
	if exec.CommandContext(ctx, binary, "-test.run", "^$", quiet).Run() == nil {
		args = append(args, quiet)
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = filepath.Join(r.root, m.pkg)
	cmd.Env = append(os.Environ(), fmt.Sprint("LAPSE_MUTANT=", number))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = ctx.Err()
	}
	return out, err
}

// firstLine returns the first line of a text that has one of these pieces; "" if none has.
func firstLine(text string, pieces ...string) string {
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(pieces, func(p string) bool { return strings.Contains(line, p) }) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// summary prints what has become of the mutants. It reports whether all are killed or change
// nothing.
func (r *runner) summary() bool {
	count := map[string]int{}
	for _, m := range r.all {
		verdict := cmp.Or(r.known[m.key()].Verdict, "not tried")
		count[verdict]++
		if verdict != killed && verdict != same {
			fmt.Printf("%-15s %v\n", verdict, m)
		}
	}
	fmt.Printf("%d faults:", len(r.all))
	for _, verdict := range []string{killed, survived, same, noPlace, noBuild, unusable, "not tried"} {
		if n := count[verdict]; n > 0 {
			fmt.Printf(" %d %s,", n, verdict)
		}
	}
	done := count[killed] + count[same]
	fmt.Printf(" %.1f %% killed or without an effect\n", 100*float64(done)/float64(max(len(r.all), 1)))
	return done == len(r.all)
}
