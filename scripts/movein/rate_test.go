//go:build fault

package movein

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// TestRate imports LAPSE_TASKS keys (100,000 unless set), while a client of the source measures
// how long its commands take. The source and that client get the processor before all others, as
// if they had machines of their own: otherwise the figures tell how this machine shares its
// processors. Where that is not allowed, the test says so.
func TestRate(t *testing.T) {
	keys := number(t, "LAPSE_TASKS", 100_000)
	source := redistest.Start(t)
	first(t, source.Pid())
	l := serve(t)
	fill(t, source.Client(), "order", 0, keys, func(i int) time.Duration { return time.Hour + time.Duration(i)*time.Millisecond })
	run := func() {
		out, err := exec.Command(program, "import", "redis", "--from", source.URL(), "--match", "order:*", "--topic", "order.expired", "--server", l.url).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		t.Logf("%s", strings.TrimSpace(string(out)))
	}
	before := measure(t, source.Addr, func() { <-time.After(5 * time.Second) })
	during := measure(t, source.Addr, run)
	again := measure(t, source.Addr, run)
	if n := l.left(t, "order.expired"); n != keys {
		t.Errorf("%d tasks, want %d", n, keys)
	}
	t.Logf("GET at the source: before %s; during %s; during a repeated one %s; p99 %.2f and %.2f times as long", before, during, again,
		float64(during.p99)/float64(before.p99), float64(again.p99)/float64(before.p99))
}

// first gives a process the processor before all others.
func first(t *testing.T, pid int) {
	t.Helper()
	if out, err := exec.Command("chrt", "--all-tasks", "--fifo", "--pid", "10", strconv.Itoa(pid)).CombinedOutput(); err != nil {
		t.Logf("the source shares the processors: %v: %s", err, out)
	}
}

type latency struct{ p50, p99, most time.Duration }

func (l latency) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, at most %s", l.p50, l.p99, l.most)
}

// probeAddr is the variable that makes this program a probe of the Redis at that address.
const probeAddr = "LAPSE_PROBE"

// measure has a probe ask for as long as do takes.
func measure(t *testing.T, addr string, do func()) (l latency) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), probeAddr+"="+addr)
	stop, err := cmd.StdinPipe()
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
	first(t, cmd.Process.Pid)
	do()
	stop.Close()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &l.p50, &l.p99, &l.most)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatalf("%v: %q", err, line)
	}
	return l
}

// probe makes a GET each millisecond until standard input ends, and prints how long they took in
// nanoseconds: the median, the 99th percentile, the longest.
func probe(addr string) error {
	c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1})
	defer c.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		close(ended)
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var took []time.Duration
	for {
		select {
		case <-ended:
			slices.Sort(took)
			_, err := fmt.Println(int64(took[len(took)/2]), int64(took[len(took)*99/100]), int64(took[len(took)-1]))
			return err
		case <-tick.C:
		}
		began := time.Now()
		if err := c.Get(context.Background(), "order:0").Err(); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
}
