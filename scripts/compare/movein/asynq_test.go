package movein

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

var program string

func TestMain(m *testing.M) {
	os.Exit(rig.WithProgram(func(path string) int {
		program = path
		return m.Run()
	}))
}

// A bench is asynq on a Redis, and a Lapse.
type bench struct {
	*testing.T
	redis     asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector
	lapse     *client.Client
	url       string
	from      string
}

func newBench(t *testing.T) *bench {
	source := redistest.Start(t)
	b := &bench{T: t, redis: asynq.RedisClientOpt{Addr: source.Addr}, from: source.URL()}
	b.client, b.inspector = asynq.NewClient(b.redis), asynq.NewInspector(b.redis)
	addr := redistest.FreeAddr(t)
	b.url = "http://" + addr
	cmd := exec.Command(program, "serve", "--listen", addr, "--data", t.TempDir(), "--log-level", "warn")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.client.Close()
		_ = b.inspector.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	b.wait("server", func() bool {
		resp, err := http.Get(b.url + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	var err error
	if b.lapse, err = client.New(client.Options{URL: b.url}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.lapse.Close)
	return b
}

func (b *bench) wait(what string, yes func() bool) {
	b.Helper()
	if !rig.Within(20*time.Millisecond, time.Minute, yes) {
		b.Fatalf("no %s within a minute", what)
	}
}

// run runs an import, and returns its exit code and what it prints.
func (b *bench) run(args ...string) (int, string) {
	b.Helper()
	cmd := exec.Command(program, append([]string{"import", "asynq", "--server", b.url, "--from", b.from}, args...)...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// imports runs an import that must succeed and print a part.
func (b *bench) imports(part string, args ...string) {
	b.Helper()
	if code, out := b.run(args...); code != 0 || !strings.Contains(out, part) {
		b.Fatalf("exit code %d, want %q in %s", code, part, out)
	}
}

func (b *bench) enqueue(kind string, payload []byte, options ...asynq.Option) *asynq.TaskInfo {
	b.Helper()
	info, err := b.client.Enqueue(asynq.NewTaskWithHeaders(kind, payload, map[string]string{"Tenant": "eu"}), options...)
	if err != nil {
		b.Fatal(err)
	}
	return info
}

func (b *bench) task(info *asynq.TaskInfo) *client.Task {
	b.Helper()
	t, err := b.lapse.Get(b.Context(), "asynq:"+info.Queue+":"+info.ID)
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// Scheduled tasks, and those that wait for another attempt, move with what asynq knows of them.
func TestAsynq(t *testing.T) {
	b := newBench(t)
	scheduled := b.enqueue("mail:welcome", []byte(`{"user":1}`), asynq.ProcessIn(time.Hour), asynq.MaxRetry(7))
	low := b.enqueue("mail:welcome", []byte("text"), asynq.ProcessIn(2*time.Hour), asynq.Queue("low"), asynq.TaskID("order-42"))
	unique := b.enqueue("report", nil, asynq.ProcessIn(time.Hour), asynq.Unique(24*time.Hour))
	failing := b.enqueue("charge", []byte("\xff"), asynq.MaxRetry(5))
	pending := b.enqueue("mail:welcome", nil, asynq.Queue("untouched"))

	server := asynq.NewServer(b.redis, asynq.Config{
		Concurrency: 1, LogLevel: asynq.FatalLevel, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 30 * time.Minute },
	})
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errors.New("no money") })); err != nil {
		t.Fatal(err)
	}
	b.wait("task that is retried", func() bool {
		info, err := b.inspector.GetTaskInfo("default", failing.ID)
		return err == nil && info.State == asynq.TaskStateRetry
	})
	b.wait("server of asynq that is known", func() bool {
		servers, err := b.inspector.Servers()
		return err == nil && len(servers) > 0
	})
	if code, out := b.run(); code != 64 || !strings.Contains(out, "servers of asynq are running (1)") {
		t.Errorf("exit code %d: %s", code, out)
	}
	server.Shutdown()

	b.imports("imported 4 ")
	b.imports("imported 0, there already 4 ")
	for _, want := range []struct {
		info                                    *asynq.TaskInfo
		topic, payload, encoding, retried, most string
	}{
		{scheduled, "mail:welcome", `{"user":1}`, "", "0", "7"},
		{low, "mail:welcome", `"text"`, "text", "0", "25"},
		{unique, "report", "", "", "0", "25"},
		{failing, "charge", `"/w=="`, "base64", "1", "5"},
	} {
		info, err := b.inspector.GetTaskInfo(want.info.Queue, want.info.ID)
		if err != nil {
			t.Fatal(err)
		}
		got := b.task(info)
		h := got.Headers
		if got.Topic != want.topic || string(got.Payload) != want.payload || got.Due.Unix() != info.NextProcessAt.Unix() || h["payload-encoding"] != want.encoding ||
			h["asynq-retried"] != want.retried || h["asynq-max-retry"] != want.most || h["asynq-queue"] != info.Queue || h["asynq-id"] != info.ID ||
			h["asynq-type"] != info.Type || h["tenant"] != "eu" || h["imported"] != "asynq" {
			t.Errorf("%+v became %+v", info, got)
		}
	}
	// asynq moves one, and Lapse delivers one.
	if err := b.inspector.RunTask("low", low.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := b.lapse.Fire(t.Context(), "asynq:default:"+scheduled.ID); err != nil {
		t.Fatal(err)
	}
	got, err := b.lapse.Reserve(t.Context(), "mail:welcome", client.Reservation{Wait: 10 * time.Second})
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if _, err := b.lapse.Ack(t.Context(), got[0].Receipt); err != nil {
		t.Fatal(err)
	}
	b.imports("imported 0, there already 3, deleted in the source 3 ", "--delete-source")
	if code, out := b.run(); code != 4 || !strings.Contains(out, "nothing was found to import") {
		t.Errorf("an empty source: exit code %d: %s", code, out)
	}
	for _, info := range []*asynq.TaskInfo{scheduled, unique, failing} {
		if _, err := b.inspector.GetTaskInfo(info.Queue, info.ID); !errors.Is(err, asynq.ErrTaskNotFound) {
			t.Errorf("%s is in asynq still: %v", info.ID, err)
		}
	}
	if _, err := b.inspector.GetTaskInfo("untouched", pending.ID); err != nil {
		t.Errorf("a pending task is gone: %v", err)
	}
	b.enqueue("report", nil, asynq.ProcessIn(time.Hour), asynq.Unique(24*time.Hour)) // not locked
	if again := b.task(scheduled); again.Outcome != client.OutcomeDelivered {
		t.Errorf("a delivered task is %+v", again)
	}
}

// What cannot be the name of a topic needs --topic.
func TestAsynqTopics(t *testing.T) {
	b := newBench(t)
	odd := b.enqueue("send mail", nil, asynq.ProcessIn(time.Hour), asynq.TaskID("a b"))
	b.enqueue("mail", nil, asynq.ProcessIn(time.Hour), asynq.Queue("other"))
	if code, out := b.run("--queue", "default"); code != 1 || !strings.Contains(out, "give --topic") {
		t.Errorf("exit code %d: %s", code, out)
	}
	b.imports("imported 1 ", "--queue", "default", "--topic", "mail.later")
	page, err := b.lapse.List(t.Context(), client.Query{Topic: "mail.later"})
	if err != nil || len(page.Tasks) != 1 || page.Tasks[0].Headers["asynq-id"] != odd.ID || !strings.HasPrefix(page.Tasks[0].ID, "sha256:") {
		t.Errorf("got %+v, %v", page, err)
	}
}

// An import is killed at random: each task is in one of the two places, and in the end here.
func TestKilledAsynq(t *testing.T) {
	const tasks = 5000
	b := newBench(t)
	for i := range tasks {
		b.enqueue("mail", []byte(fmt.Sprint(i)), asynq.ProcessIn(time.Hour))
	}
	kills, longest := 0, 50*time.Millisecond
	for {
		cmd := exec.Command(program, "import", "asynq", "--server", b.url, "--from", b.from, "--delete-source")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		var err error
		select {
		case err = <-ended:
			const nothingLeft = 4 // the exit code, where the last kill came after the last task
			if err != nil && (kills == 0 || cmd.ProcessState.ExitCode() != nothingLeft) {
				t.Fatalf("%v: %s", err, &out)
			}
		case <-time.After(time.Millisecond + rand.N(longest)):
			_ = cmd.Process.Kill()
			<-ended
			kills++
			longest += longest / 10
			continue
		}
		break
	}
	seen := map[string]bool{}
	for task, err := range b.lapse.All(t.Context(), client.Query{Topic: "mail", Limit: 1000}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(task.Payload)] {
			t.Errorf("%s is there twice", task.Payload)
		}
		seen[string(task.Payload)] = true
	}
	info, err := b.inspector.GetQueueInfo("default")
	if err != nil || info.Scheduled != 0 || len(seen) != tasks {
		t.Errorf("%d tasks here, want %d; in asynq %+v, %v", len(seen), tasks, info, err)
	}
	t.Logf("%d kills", kills)
}
