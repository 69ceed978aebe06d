package diskledger

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery"
)

// These tests run the test binary again as a process of its own. childVariable says what it does,
// and in which directory.
const childVariable = "DISKLEDGER_TEST_CHILD"

// How far childWrites is ahead of the confirmations, at most, and by how much a
// deletion follows its creation.
const (
	childAhead = 400
	childLag   = 2000
)

// runChild runs the task of a child process, and ends it.
func runChild() {
	role, dir, ok := strings.Cut(os.Getenv(childVariable), ":")
	if !ok {
		return
	}
	if err := map[string]func(string) error{"hold": childHolds, "write": childWrites}[role](dir); err != nil {
		fmt.Println("child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// childHolds adopts the directory until its input ends.
func childHolds(dir string) error {
	l, _, err := childAdopts(dir)
	if err != nil {
		return err
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return l.Close()
}

// childWrites creates records with rising numbers until it is killed, and moves or deletes some of
// them again. It prints each confirmed step.
func childWrites(dir string) error {
	l, terms, err := childAdopts(dir)
	if err != nil {
		return err
	}
	terms.MaxChanges = 50
	room := make(chan struct{}, childAhead)
	out := bufio.NewWriter(os.Stdout)
	c := recovery.NewCommitter(recovery.CommitterConfig[string]{
		Ledger: l, Terms: terms, Log: quiet(),
		Done: func(_ int, tags []string, err error) {
			for _, tag := range tags {
				fmt.Fprintln(out, tag)
				<-room
			}
			out.Flush()
		},
	})
	begin, err := strconv.Atoi(os.Getenv(childVariable + "_FROM"))
	if err != nil {
		return err
	}
	spot := func(n int) recovery.Spot { return recovery.Spot{Place: recovery.Pending, At: int64(n)} }
	for n := begin; ; n++ {
		room <- struct{}{}
		c.Submit(0, recovery.Change{ID: id(int64(n)), To: spot(n), Data: make([]byte, 200)}, fmt.Sprint("put ", n))
		// An earlier one, whose creation was confirmed long ago.
		if old := n - childLag; old >= begin && n%3 == 0 {
			room <- struct{}{}
			c.Submit(0, recovery.Change{ID: id(int64(old)), From: spot(old)}, fmt.Sprint("delete ", old))
		}
	}
}

func childAdopts(dir string) (*Ledger, recovery.Terms, error) {
	l, err := Open(dir, Options{Log: quiet()})
	if err != nil {
		return nil, recovery.Terms{}, err
	}
	terms, err := l.Adopt(context.Background())
	return l, terms, err
}

// startChild starts a process and returns a scanner of what it prints.
func startChild(t *testing.T, role, dir string, env ...string) (*exec.Cmd, io.Closer, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childVariable+"="+role+":"+dir), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, in, bufio.NewScanner(out)
}

// TestSecondProcess: the error names the directory and the process.
func TestSecondProcess(t *testing.T) {
	dir := t.TempDir()
	cmd, in, out := startChild(t, "hold", dir)
	if !out.Scan() || out.Text() != "held" {
		t.Fatalf("the child says %q", out.Text())
	}
	l, err := Open(dir, Options{Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = l.Adopt(t.Context())
	if !errors.Is(err, recovery.ErrHeld) {
		t.Fatalf("Adopt: %v, want ErrHeld", err)
	}
	for _, want := range []string{dir, fmt.Sprint("process ", cmd.Process.Pid)} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Adopt: %q does not mention %s", err, want)
		}
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Fatalf("the child: %v", err)
	}
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatalf("Adopt after the owner has gone: %v", err)
	}
}

// TestKill ends a writing process with SIGKILL, a few times in one directory.
// What it had confirmed is there, and what it had deleted is not.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	there := map[int]bool{} // by the last step that was confirmed
	from := 0
	for range 4 {
		cmd, _, out := startChild(t, "write", dir, fmt.Sprintf("%s_FROM=%d", childVariable, from))
		// After so many lines it is killed, but what it had printed by then
		// is confirmed as well.
		lines := 3000 + rand.IntN(8000)
		for n := 0; out.Scan(); n++ {
			verb, number, _ := strings.Cut(out.Text(), " ")
			task, err := strconv.Atoi(number)
			if err != nil {
				if n > lines {
					break // cut off in the middle of a line
				}
				t.Fatalf("the child says %q", out.Text())
			}
			there[task] = verb == "put"
			from = max(from, task+1)
			if n == lines {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		if len(there) < lines/2 {
			t.Fatalf("the child wrote %d records", len(there))
		}
		got := pendingOnDisk(t, dir)
		for task, want := range there {
			has := got[string(id(int64(task)))]
			switch {
			case has && !want:
				t.Fatalf("task %d was deleted, and is back", task)
			case want && !has && !underWay(task, from):
				t.Fatalf("task %d was confirmed, and is lost", task)
			}
			there[task] = has
		}
		from += 10_000 // clear of the creations that were under way
	}
}

// underWay reports whether the deletion of a task may have been carried out
// without its confirmation, when the tasks below next were confirmed.
func underWay(task, next int) bool {
	deleter := task + childLag // it was submitted right after this one
	return deleter >= next-1 && deleter <= next+childAhead
}

func pendingOnDisk(t *testing.T, dir string) map[string]bool {
	t.Helper()
	l, _, err := childAdopts(dir)
	if err != nil {
		t.Fatalf("Adopt after a kill: %v", err)
	}
	defer l.Close()
	ids := map[string]bool{}
	if err := l.Scan(t.Context(), func(page []recovery.Entry) error {
		for _, e := range page {
			ids[string(e.ID)] = true
		}
		return nil
	}); err != nil {
		t.Fatalf("Scan: %v", err)
	}
	return ids
}
