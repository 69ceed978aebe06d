//go:build fault

package crash

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// movedTasks is how many tasks are moved. An export of them has some pages, and an import some
// requests.
const movedTasks = 40_000

// quick and slow are within which time the next kill comes, during an export and during an import.
const quick, slow = 250 * time.Millisecond, 600 * time.Millisecond

// TestMoveUnderKills exports everything from one ledger and imports it into one of the other kind,
// while the commands and the servers are killed at random, until both are complete. Then the target
// must have what the source had: nothing is lost, and nothing is there twice.
func TestMoveUnderKills(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, from *server) {
		to := newServer(t)
		if from.redis == nil {
			to = onRedis(t)
		}
		seed := rand.Uint64()
		t.Log("seed", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		from.start().ready(t)
		to.start().ready(t)
		fillToMove(t, from.latest())
		want := contentOf(t, from.latest().exported(t))
		if len(want) != movedTasks+1 {
			t.Fatalf("the source has %d tasks and topics", len(want))
		}

		file := filepath.Join(t.TempDir(), "all.ndjson.gz")
		address := front(t, func() *server { return from }) // a restarted server has another port
		kills := untilDone(t, rng, quick, func() *server { return from }, func() *exec.Cmd {
			return command("export", "--output", file, "--server", address)
		})
		t.Logf("the export was done after %d kills", kills)
		kills = untilDone(t, rng, slow, func() *server { return to }, func() *exec.Cmd {
			return command("import", "file", file, "--server", to.latest().base)
		})
		t.Logf("the import was done after %d kills", kills)
		if left, _ := filepath.Glob(file + ".*"); len(left) != 0 {
			t.Errorf("there remain %v", left)
		}
		to.kill()
		to.start().ready(t)
		sameContent(t, want, contentOf(t, to.latest().exported(t)))
	})
}

// sameContent fails the test unless two exports have the same tasks and topics.
func sameContent(t *testing.T, want, got map[string]string) {
	t.Helper()
	lost, other := 0, 0
	for id, line := range want {
		switch has, ok := got[id]; {
		case !ok:
			lost++
		case has != line:
			if other++; other < 5 {
				t.Errorf("imported\n%swant\n%s", has, line)
			}
		}
	}
	if lost+other > 0 || len(got) != len(want) {
		t.Errorf("of %d tasks and topics %d are lost and %d changed; the target has %d", len(want), lost, other, len(got))
	}
}

// front returns the base address of a load balancer that passes each connection on to the server
// that next returns. An export goes on only at the address where it began.
func front(t *testing.T, next func() *server) (base string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); group.Wait() })
	var choosing sync.Mutex // guards next
	group.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer from.Close()
				choosing.Lock()
				address := strings.TrimPrefix(next().latest().base, "http://")
				choosing.Unlock()
				to, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer to.Close()
				group.Go(func() { defer to.Close(); _, _ = io.Copy(to, from) })
				_, _ = io.Copy(from, to)
			})
		}
	})
	return "http://" + l.Addr().String()
}

// untilDone runs a command until it succeeds. Meanwhile it, or a server that victim chooses, is
// killed at random, the server with a restart.
func untilDone(t *testing.T, rng *rand.Rand, within time.Duration, victim func() *server, next func() *exec.Cmd) (kills int) {
	t.Helper()
	const most = 10 // then it is let alone
	for tries := 0; tries < 100; tries++ {
		c := next()
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		for over := false; !over; {
			var kill <-chan time.Time
			if kills < most {
				kill = time.After(10*time.Millisecond + time.Duration(rng.Int64N(int64(within))))
			}
			select {
			case err := <-ended:
				over = true
				if err == nil {
					return kills
				}
				if status, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() && c.ProcessState.ExitCode() != 6 {
					t.Fatalf("%v: %v\n%s", c.Args, err, &out)
				}
			case <-kill:
				kills++
				if rng.IntN(2) == 0 {
					_ = c.Process.Kill()
				} else {
					s := victim()
					s.kill()
					s.start()
				}
			case <-t.Context().Done():
				t.Fatal(context.Cause(t.Context()))
			}
		}
	}
	t.Fatal("the command is not done after 100 attempts")
	return 0
}

// fillToMove makes tasks of each kind: most wait, some are held, some dead, some have failed.
func fillToMove(t *testing.T, r *run) {
	t.Helper()
	call := func(method, path string, body, answer any) {
		t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		if status, _, err := r.call(method, path, text, answer); err != nil || status > 299 {
			t.Fatalf("%s %s: %d, %v", method, path, status, err)
		}
	}
	call("PUT", "/v1/topics/later", map[string]any{"weight": 7, "retry": map[string]any{"min_backoff": "10h", "max_backoff": "20h"}}, nil)
	const dead, failed, held = 500, 500, 200
	for from := 0; from < movedTasks; from += 5000 {
		batch := make([]map[string]any, 5000)
		for i := range batch {
			n := from + i
			batch[i] = map[string]any{"id": fmt.Sprint("task-", n), "topic": "later", "delay": "20h", "payload": map[string]any{"n": n, "text": strings.Repeat("x", 100)}}
			if n < dead+failed {
				batch[i]["delay"] = "0s"
			}
		}
		call("POST", "/v1/tasks/batch", batch, nil)
	}
	for done := 0; done < dead+failed; {
		var reserved struct {
			Tasks []struct{ ID, Receipt string }
		}
		call("POST", "/v1/topics/later/reserve", map[string]any{"max": 100, "wait": "10s"}, &reserved)
		var bury, release []string
		for _, d := range reserved.Tasks {
			if done++; done <= dead {
				bury = append(bury, d.Receipt)
			} else {
				release = append(release, d.Receipt)
			}
		}
		for verb, receipts := range map[string][]string{"bury": bury, "release": release} {
			if len(receipts) > 0 {
				call("POST", "/v1/receipts/"+verb, map[string]any{"receipts": receipts, "reason": "no"}, nil)
			}
		}
	}
	ids := make([]string, held)
	for i := range ids {
		ids[i] = fmt.Sprint("task-", movedTasks-1-i)
	}
	call("POST", "/v1/tasks/actions", map[string]any{"action": "hold", "ids": ids}, nil)
}

// exported returns an export of a server that lives.
func (r *run) exported(t *testing.T) string {
	t.Helper()
	out, err := command("export", "--server", r.base).Output()
	if err != nil {
		t.Fatalf("export: %v", err)
	}
	return string(out)
}

// contentOf returns the lines of an export by their ids, and those of topics by their names.
func contentOf(t *testing.T, text string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(text) {
		var l struct{ Type, ID, Topic string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		key := l.ID
		switch l.Type {
		case "topic":
			key = "topic " + l.Topic
		case "lapse_export", "end":
			continue
		}
		if _, twice := all[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		all[key] = line
	}
	return all
}

// TestMoveThroughFleet moves everything from a disk into three nodes on one Redis, and from there
// to another disk. Nodes are killed meanwhile, and each attempt calls another one.
func TestMoveThroughFleet(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	first, last := newServer(t), newServer(t)
	first.start().ready(t)
	last.start().ready(t)
	fillToMove(t, first.latest())
	want := contentOf(t, first.latest().exported(t))
	redis := redistest.Start(t, "appendonly yes", "appendfsync always")
	f := newFleet(t, entries(t, func() entry { return entry{url: redis.URL()} }))
	dir := t.TempDir()
	into, outOf := filepath.Join(dir, "in.ndjson"), filepath.Join(dir, "out.ndjson.zst")
	if out, err := command("export", "--output", into, "--server", first.latest().base).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	turn := 0
	victim := func() *server { turn++; return f.nodes[turn%len(f.nodes)].server }
	kills := untilDone(t, rng, slow, victim, func() *exec.Cmd {
		return command("import", "file", into, "--server", victim().latest().base)
	})
	t.Logf("the import was done after %d kills", kills)
	calls := 0
	address := front(t, func() *server { calls++; return f.nodes[calls%len(f.nodes)].server })
	kills = untilDone(t, rng, quick, victim, func() *exec.Cmd {
		return command("export", "--output", outOf, "--topic", "later", "--server", address)
	})
	t.Logf("the export was done after %d kills", kills)
	if out, err := command("import", "file", outOf, "--server", last.latest().base).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := contentOf(t, last.latest().exported(t))
	sameContent(t, want, got)
}

// TestImportIsDeliveredOnce imports tasks that are due, into a server with a receiver, while the
// command is killed at random. Each is delivered once.
func TestImportIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *server) {
		const n = 30_000
		r := s.start()
		r.ready(t)
		file := filepath.Join(t.TempDir(), "due.ndjson")
		var text bytes.Buffer
		text.WriteString(`{"type":"lapse_export","version":1}` + "\n")
		at := rig.Wire(time.Now())
		for i := range n {
			fmt.Fprintf(&text, `{"type":"task","id":"task-%d","topic":"due","due_at":%q,"next_at":%q,"created_at":%q,"attempt":0,"revision":1,"fingerprint":"%016x"}`+"\n", i, at, at, at, i)
		}
		fmt.Fprintf(&text, `{"type":"end","topics":0,"tasks":%d,"dead":0,"finished":0,"unreadable":0}`+"\n", n)
		if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		times := map[string]int{}
		receivers := rig.NewWorkers(t)
		for range 2 {
			receivers.Go(func() {
				for receivers.Ctx.Err() == nil {
					var reserved struct {
						Tasks []struct{ ID, Receipt string }
					}
					status, _, err := r.call(http.MethodPost, "/v1/topics/due/reserve", []byte(`{"max":100,"wait":"200ms","lease":"5m"}`), &reserved)
					if err != nil || status != http.StatusOK || len(reserved.Tasks) == 0 {
						continue
					}
					receipts := make([]string, len(reserved.Tasks))
					mu.Lock()
					for i, d := range reserved.Tasks {
						times[d.ID]++
						receipts[i] = d.Receipt
					}
					mu.Unlock()
					body, _ := json.Marshal(map[string]any{"receipts": receipts})
					_, _, _ = r.call(http.MethodPost, "/v1/receipts/ack", body, nil)
				}
			})
		}
		seed := rand.Uint64()
		t.Log("seed", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		kills := 0
		for done := false; !done; {
			c := command("import", "file", file, "--server", r.base)
			if kills < 15 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+rng.IntN(500))*time.Millisecond)
				killed := exec.CommandContext(ctx, c.Path, c.Args[1:]...)
				killed.Env = c.Env
				done = killed.Run() == nil
				cancel()
				kills++
				continue
			}
			out, err := c.CombinedOutput()
			if done = err == nil; !done {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		every(t, 50*time.Millisecond, time.Minute, func() bool { mu.Lock(); defer mu.Unlock(); return len(times) == n })
		receivers.Stop()
		var twice []string
		for id, k := range times {
			if k != 1 {
				twice = append(twice, id)
			}
		}
		slices.Sort(twice)
		if len(twice) > 0 {
			t.Errorf("after %d kills %d tasks were delivered more than once: %.10v", kills, len(twice), twice)
		}
	})
}

// TestBackupUnderKills kills a server at random while it makes a backup, and starts it again, until
// a backup is made. What was accepted before is in its copy.
func TestBackupUnderKills(t *testing.T) {
	t.Parallel()
	need(t, "--backup-dir")
	s := newServer(t)
	backups := t.TempDir()
	s.more = []string{"--backup-dir", backups}
	s.start().ready(t)
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	accepted := 0
	schedule := func() {
		t.Helper()
		batch := make([]map[string]any, 2000)
		for i := range batch {
			batch[i] = map[string]any{"id": fmt.Sprint("task-", accepted+i), "topic": "later", "delay": "20h", "payload": strings.Repeat("x", 500)}
		}
		body, err := json.Marshal(batch)
		if err != nil {
			t.Fatal(err)
		}
		every(t, 10*time.Millisecond, time.Minute, func() bool {
			status, _, err := s.latest().call(http.MethodPost, "/v1/tasks/batch", body, nil)
			return err == nil && status == http.StatusOK
		})
		accepted += len(batch)
	}
	made := 0
	for k := range 12 {
		schedule()
		name, inBackup := fmt.Sprint("backup-", k), accepted
		ended := make(chan error, 1)
		c := command("backup", name, "--server", s.latest().base)
		go func() { ended <- c.Run() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("backup: %v", err)
			}
		case <-time.After(time.Duration(rng.IntN(40)) * time.Millisecond):
			s.kill()
			s.start().ready(t)
			t.Logf("%s was killed meanwhile, and the command said %v", name, <-ended)
			if _, err := os.Stat(filepath.Join(backups, name)); err != nil {
				if out, err := command("backup", name, "--server", s.latest().base).CombinedOutput(); err != nil {
					t.Fatalf("backup after the kill: %v\n%s", err, out)
				}
			}
		}
		made++
		copied := filepath.Join(t.TempDir(), "copy")
		if out, err := command("restore", filepath.Join(backups, name), "--data", copied).CombinedOutput(); err != nil {
			t.Fatalf("restore of %s: %v\n%s", name, err, out)
		}
		restored := newServer(t)
		restored.data = copied
		restored.start().ready(t)
		content := contentOf(t, restored.latest().exported(t))
		for i := range inBackup {
			if _, ok := content[fmt.Sprint("task-", i)]; !ok {
				t.Fatalf("%s lacks task-%d of %d", name, i, inBackup)
			}
		}
		if len(content) != inBackup {
			t.Errorf("%s has %d tasks, of %d", name, len(content), inBackup)
		}
		restored.kill()
	}
	t.Logf("%d backups", made)
}
