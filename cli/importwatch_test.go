package cli

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

func connectedTo(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	c, err := redisledger.Connect(url, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// documentedRights are those of the first ACL SETUSER on the page about moving from Redis.
func documentedRights(t *testing.T) (rights []any) {
	t.Helper()
	page, err := os.ReadFile("../docs/moving.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "ACL SETUSER mover on '>secret' ")
	line, _, _ := strings.Cut(rest, "\n")
	if !found {
		t.Fatal("the page names no rights")
	}
	for _, word := range strings.Fields(line) {
		rights = append(rights, strings.Trim(word, `'"`))
	}
	return rights
}

// A watch is an import that follows its source.
type watch struct {
	*shell
	stop      context.CancelFunc
	ended     chan int
	out, errs screen
}

func (s *shell) watch(args ...string) *watch {
	s.Helper()
	ctx, stop := context.WithCancel(s.Context())
	w := &watch{shell: s, stop: stop, ended: make(chan int, 1)}
	go func() {
		w.ended <- run(ctx, append(args, "--watch", "--json", "--server", s.url), streams{&w.out, &w.errs})
		close(w.ended)
	}()
	s.Cleanup(func() { w.stop(); <-w.ended })
	eventually(s.T, "import that follows: "+w.errs.String(), func() bool { return strings.Contains(w.errs.String(), "following the changes") })
	return w
}

// end interrupts it, and returns its counts.
func (w *watch) end() map[string]int {
	w.Helper()
	w.stop()
	if code := <-w.ended; code != exitOK {
		w.Fatalf("exit code %d: %s%s", code, w.out.String(), w.errs.String())
	}
	return w.counts(w.out.String())
}

func (w *watch) becomes(id string, yes func(*client.Task) bool) {
	w.Helper()
	eventually(w.T, "such task "+id, func() bool { return yes(w.task(id)) })
}

func isPending(t *client.Task) bool { return t != nil && t.State == client.Pending }
func isCancelled(t *client.Task) bool {
	return t != nil && t.Outcome == client.OutcomeCancelled
}

// What changes in the source changes in Lapse, until the import is interrupted.
func TestImportRedisWatch(t *testing.T) {
	s, source := newShell(t), redistest.Start(t)
	for _, key := range []string{"order:moved", "order:deleted", "order:persisted", "order:renamed", "order:overwritten", "order:again", "order:mine"} {
		source.Do("SET", key, "v", "EX", 3600)
	}
	w := s.watch(importingFrom(source.URL(), "--configure")...)
	if !strings.Contains(w.errs.String(), `was "" and is "Kg$e" now`) {
		t.Errorf("it does not say what it has configured: %s", w.errs.String())
	}
	at := source.Do("PEXPIRETIME", "order:again").(int64)
	mine := s.task("order:mine")
	// Its writer has moved.
	s.ok("schedule", "order.expired", "--id", "order:mine", "--delay", "3h", "--replace")

	source.Do("SET", "order:new", "v", "EX", 3600)
	source.Do("EXPIRE", "order:moved", 7200)
	source.Do("DEL", "order:deleted")
	source.Do("PERSIST", "order:persisted")
	source.Do("RENAME", "order:renamed", "order:renewed")
	source.Do("SET", "order:overwritten", "v")
	source.Do("DEL", "order:mine")
	source.Do("DEL", "order:again")
	source.Do("SET", "order:short", "v", "PX", 1)
	w.becomes("order:new", isPending)
	w.becomes("order:moved", func(task *client.Task) bool {
		return task.Due.UnixMilli() == source.Do("PEXPIRETIME", "order:moved").(int64)
	})
	for _, id := range []string{"order:deleted", "order:persisted", "order:renamed", "order:overwritten", "order:again"} {
		w.becomes(id, isCancelled)
	}
	w.becomes("order:renewed", isPending)
	source.Do("SET", "order:again", "v", "PXAT", at)
	w.becomes("order:again", isPending)
	if task := s.task("order:mine"); task.State != client.Pending || task.Due.Equal(mine.Due) {
		t.Errorf("the task of a writer that has moved: %+v", task)
	}
	counts := w.end()
	if counts["cancelled"] != 5 || counts["moved"] != 1 {
		t.Errorf("counted %v", counts)
	}
}

// Keys that expire are delivered by Lapse: that they are gone then cancels nothing.
func TestImportRedisWatchExpiry(t *testing.T) {
	s, source := newShell(t), redistest.Start(t, "notify-keyspace-events KEA", "hz 100")
	w := s.watch(importingFrom(source.URL(), "--rescan", "1s", "--cancel-gone")...)
	source.Do("SET", "order:stays", "v", "EX", 3600)
	const keys = 50
	for i := range keys {
		source.Do("SET", "order:"+string(rune('A'+i)), "v", "PX", 300+10*i)
	}
	delivered := 0
	eventually(t, "delivery of each", func() bool {
		out := s.ok("reserve", "order.expired", "--max", "100", "--json", "--wait", "1s")
		for line := range strings.Lines(out) {
			if strings.Contains(line, "receipt") {
				delivered++
			}
		}
		return delivered >= keys
	})
	if counts := w.end(); counts["cancelled"] != 0 || delivered != keys {
		t.Errorf("%d were delivered, counted %v", delivered, counts)
	}
}

// Without notifications a key is found by the next scan, which follows the loss of a connection.
func TestImportRedisWatchLosesNothing(t *testing.T) {
	s, source := newShell(t), redistest.Start(t, "notify-keyspace-events Kg$e")
	proxy := redistest.NewProxy(t, source.Addr)
	w := s.watch(importingFrom(proxy.URL(), "--cancel-gone")...)
	source.Do("SET", "order:1", "v", "EX", 3600)
	w.becomes("order:1", isPending)
	proxy.Sever(redistest.Reset)
	source.Do("SET", "order:2", "v", "EX", 3600)
	source.Do("DEL", "order:1")
	proxy.Heal()
	w.becomes("order:2", isPending)
	w.becomes("order:1", isCancelled)
	// The end may come before the answer to the last change, which is not counted then.
	source.Do("SET", "order:3", "v", "EX", 3600)
	w.becomes("order:3", isPending)
	if counts := w.end(); counts["imported"] < 2 || counts["cancelled"] != 1 {
		t.Errorf("counted %v", counts)
	}
}

// Lapse may restart meanwhile.
func TestImportRedisWatchOutage(t *testing.T) {
	source := redistest.Start(t, "notify-keyspace-events Kg$e")
	data := t.TempDir()
	url, stop := started(t, "--data", data)
	s := &shell{t, url}
	w := s.watch(importingFrom(source.URL())...)
	stop()
	source.Do("SET", "order:1", "v", "EX", 3600)
	listen := strings.TrimPrefix(url, "http://")
	started(t, "--data", data, "--listen", listen)
	w.becomes("order:1", isPending)
	source.Do("SET", "order:2", "v", "EX", 3600)
	w.becomes("order:2", isPending)
	if counts := w.end(); counts["imported"] < 1 { // the last one may not be counted
		t.Errorf("counted %v", counts)
	}
}

func TestImportRedisNeedsNotifications(t *testing.T) {
	s, source := newShell(t), redistest.Start(t, "notify-keyspace-events Ex")
	code, _, errs := s.run(importingFrom(source.URL(), "--watch")...)
	if code != exitUsage || !strings.Contains(errs, `is "xE" and lacks Kg$e. Give --configure, or: redis-cli CONFIG SET notify-keyspace-events xEKg$e`) {
		t.Errorf("exit code %d, %s", code, errs)
	}
	s.fails(exitNotFound, []string{"topics", "get", "order.expired"}) // nothing was changed
}
