package respapi_test

import (
	"bufio"
	"net"
	"os/exec"
	"testing"
	"time"
)

// dialRedis starts a redis-server without data.
func dialRedis(t *testing.T) *wire {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed")
	}
	socket := t.TempDir() + "/redis.sock"
	server := exec.Command(path, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	var nc net.Conn
	for range 500 {
		if nc, err = net.Dial("unix", socket); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
	return &wire{t, nc, bufio.NewReader(nc)}
}
