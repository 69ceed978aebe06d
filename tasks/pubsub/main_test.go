package pubsub_test

import (
	"flag"
	"log"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	stop := startForExamples()
	// The client looks for a server that was away once a second, also when it is closed.
	away := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
	goleak.VerifyTestMain(m, away, goleak.Cleanup(func(code int) {
		stop()
		os.Exit(code)
	}))
}

// exampleURL is the Redis of the examples, which can neither start one nor be skipped by
// themselves where there is none.
var exampleURL string

func startForExamples() (stop func()) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		if err := flag.Set("test.skip", "^Example"); err != nil {
			log.Fatal(err)
		}
		return func() {}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	host, port, _ := net.SplitHostPort(addr)
	server := exec.Command(program, "--bind", host, "--port", port, "--save", "")
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	exampleURL = "redis://" + addr
	for range time.Tick(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			break
		}
	}
	return func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}
}
