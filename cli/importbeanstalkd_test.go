package cli

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/beanstalkd/go-beanstalk"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// startBeanstalkd starts a real one.
func startBeanstalkd(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("beanstalkd")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("beanstalkd is not installed: scripts/need-beanstalkd installs it")
		}
		t.Skip("beanstalkd is not installed (on Debian: apt-get install beanstalkd)")
	}
	addr := redistest.FreeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(path, append([]string{"-l", host, "-p", port}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, "beanstalkd", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return addr
}

func dialBeanstalkd(t *testing.T, addr string) *beanstalk.Conn {
	t.Helper()
	conn, err := beanstalk.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func putJob(t *testing.T, tube *beanstalk.Tube, body string, delay time.Duration) uint64 {
	t.Helper()
	id, err := tube.Put([]byte(body), 7, delay, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Ready and delayed jobs move; those that a worker has, and those that are buried, stay.
func TestImportBeanstalkd(t *testing.T) {
	s, addr := newShell(t), startBeanstalkd(t)
	conn := dialBeanstalkd(t, addr)
	mail, other := beanstalk.NewTube(conn, "mail"), beanstalk.NewTube(conn, "other")
	held := putJob(t, mail, "held", 0)
	worker := dialBeanstalkd(t, addr)
	if id, _, err := beanstalk.NewTubeSet(worker, "mail").Reserve(time.Second); err != nil || id != held {
		t.Fatal(id, err)
	}
	ready := putJob(t, mail, `{"order":1}`, 0)
	putJob(t, mail, "plain text", 0)
	putJob(t, mail, "\xff\x00", 0)
	began := time.Now()
	delayed := putJob(t, mail, `{"order":2}`, time.Hour)
	putJob(t, mail, `{"order":3}`, 30*time.Minute)
	putJob(t, other, `{}`, time.Hour)

	wantCounts(t, "first", s.imported("import", "beanstalkd", "--from", addr, "--name", "b", "--tube", "mail", "--topic", "mail.later"),
		map[string]int{"imported": 5, "deleted": 5})
	tasks := map[string]*client.Task{}
	for task, err := range s.client().All(t.Context(), client.Query{Topic: "mail.later"}) {
		if err != nil {
			t.Fatal(err)
		}
		tasks[task.Headers["beanstalkd-job"]] = task
	}
	if got := tasks[fmt.Sprint(ready)]; string(got.Payload) != `{"order":1}` || got.Due.After(time.Now().Add(time.Second)) || got.Headers["beanstalkd-tube"] != "mail" ||
		got.Headers["beanstalkd-priority"] != "7" || got.Headers["beanstalkd-ttr"] != "60" || !strings.HasPrefix(got.ID, fmt.Sprintf("beanstalkd:b:%d:", ready)) {
		t.Errorf("a ready job is %+v", got)
	}
	if got := tasks[fmt.Sprint(ready+1)]; string(got.Payload) != `"plain text"` || got.Headers["payload-encoding"] != "text" {
		t.Errorf("a job of text is %+v", got)
	}
	if got := tasks[fmt.Sprint(ready+2)]; string(got.Payload) != `"/wA="` || got.Headers["payload-encoding"] != "base64" {
		t.Errorf("a job of bytes is %+v", got)
	}
	if got := tasks[fmt.Sprint(delayed)]; got.State != client.Pending || got.Due.Before(began.Add(time.Hour)) || got.Due.After(time.Now().Add(time.Hour+2*time.Second)) {
		t.Errorf("a delayed job is %+v", got)
	}
	stats, err := mail.Stats()
	if err != nil || stats["current-jobs-ready"] != "0" || stats["current-jobs-delayed"] != "0" || stats["current-jobs-reserved"] != "1" {
		t.Errorf("left in the tube: %v, %v", stats, err)
	}
	wantCounts(t, "the rest", s.imported("import", "beanstalkd", "--from", addr), map[string]int{"imported": 1, "deleted": 1})
}

// A job whose task is there already is deleted: the import was killed in between.
func TestImportBeanstalkdRepeated(t *testing.T) {
	s := newShell(t)
	again := func(state string, delay time.Duration, then func(id string)) {
		t.Run(state, func(t *testing.T) {
			addr := startBeanstalkd(t)
			tube := beanstalk.NewTube(dialBeanstalkd(t, addr), state)
			putJob(t, tube, "1", delay)
			args := []string{"import", "beanstalkd", "--from", addr, "--name", "b", "--topic", state}
			wantCounts(t, "first", s.imported(args...), map[string]int{"imported": 1, "deleted": 1})
			var id string
			for task, err := range s.client().All(t.Context(), client.Query{Topic: state}) {
				if err != nil {
					t.Fatal(err)
				}
				id = task.ID
			}
			then(id)
			before := s.task(id)
			// Another beanstalkd counts from 1 again: as if the job had not been deleted.
			addr = startBeanstalkd(t)
			putJob(t, beanstalk.NewTube(dialBeanstalkd(t, addr), state), "1", delay)
			args[3] = addr
			wantCounts(t, "repeated", s.imported(args...), map[string]int{"repeated": 1, "deleted": 1})
			if after := s.task(id); after.State != before.State || !after.Due.Equal(before.Due) || after.Revision != before.Revision {
				t.Errorf("%+v became %+v", before, after)
			}
		})
	}
	again("ready", 0, func(id string) {
		eventually(t, "ready", func() bool { return s.task(id).State == client.Ready })
	})
	again("delayed", time.Hour, func(string) {})
	again("delivered", 0, func(string) { s.ok("reserve", "delivered", "--exec", "true", "--wait", "10s") })
	again("fired", time.Hour, func(id string) {
		s.ok("fire", id)
		s.ok("reserve", "fired", "--exec", "true", "--wait", "10s")
	})
}

// What Lapse refuses stays in beanstalkd, and does not keep the other ready jobs there.
func TestImportBeanstalkdRefused(t *testing.T) {
	s, addr := newShell(t), startBeanstalkd(t)
	tube := beanstalk.NewTube(dialBeanstalkd(t, addr), "mail")
	putJob(t, tube, strings.Repeat("\xff", 60<<10), 0) // more than a payload may have, in base64
	for i := range 3 {
		putJob(t, tube, fmt.Sprint(i), 0)
	}
	code, out, errs := s.run("import", "beanstalkd", "--from", addr, "--json")
	if code != exitFailed || !strings.Contains(errs, "no task was made of 1 thing of the source") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	wantCounts(t, "refused", s.counts(out), map[string]int{"imported": 3, "deleted": 3, "refused": 1})
	eventually(t, "job that is ready again", func() bool {
		stats, err := tube.Stats()
		return err == nil && stats["current-jobs-ready"] == "1"
	})
}

func TestImportBeanstalkdFlags(t *testing.T) {
	s := newShell(t)
	if code, _, errs := s.run("import", "beanstalkd", "--from", "nowhere", "--topic", "no topic"); code != exitUsage ||
		!strings.Contains(errs, "from: must be HOST:PORT") || !strings.Contains(errs, "topic: must be") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if code, out, errs := s.run("import", "beanstalkd", "--from", redistest.FreeAddr(t)); code != exitUnavailable || out != "" {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
}

// A tube that is none imports nothing, says which there are, and makes no topic.
func TestImportBeanstalkdNothing(t *testing.T) {
	s, addr := newShell(t), startBeanstalkd(t)
	putJob(t, beanstalk.NewTube(dialBeanstalkd(t, addr), "mail"), "a", time.Hour)
	s.fails(exitNotFound, []string{"import", "beanstalkd", "--from", addr, "--tube", "mial", "--topic", "t"},
		"nothing was found to import: no job is ready or delayed in the tubes that were looked at; its tubes are default, mail")
	if topics := s.lines("topics", "list"); len(topics) > 0 {
		t.Errorf("topics %v", topics)
	}
}
