package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Each line of a log of JSON is an object, and a duration in it is text with a unit.
func TestLogOfJSON(t *testing.T) {
	var out bytes.Buffer
	s := logSettings{LogFormat: "json"}
	log := s.logger(&out)
	log.Info("a line", "took", 1500*time.Millisecond, slog.Group("within", "grace", 2*time.Minute), "by", -time.Millisecond, "tasks", 7)
	log.With("pause", time.Microsecond).Warn("another one")
	for i, want := range []string{`"took":"1.5s","within":{"grace":"2m0s"},"by":"-1ms","tasks":7}`, `"pause":"1µs"}`} {
		line := strings.Split(out.String(), "\n")[i]
		if !strings.HasSuffix(line, want) {
			t.Errorf("%s\ndoes not end with %s", line, want)
		}
	}
}

// With a log of JSON the server says where it is in JSON as well, whatever the level of the log.
func TestAnnouncementInJSON(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	data := t.TempDir()
	read, write := io.Pipe()
	var errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		defer write.Close()
		code <- run(ctx, []string{
			"serve", "--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", "--data", data,
			"--node", "orders-1", "--log-format", "json", "--log-level", "error",
		}, streams{write, &errs})
	}()
	out := json.NewDecoder(read)
	var said struct {
		Msg, Node, URL, Storage string
		HealthURL               string `json:"health_url"`
	}
	if err := out.Decode(&said); err != nil {
		t.Fatalf("%v; exit code %d: %s", err, <-code, &errs)
	}
	if said.Msg != "lapse serves" || said.Node != "orders-1" || said.Storage != "on disk in "+data {
		t.Errorf("it says %+v", said)
	}
	for _, url := range []string{said.URL + "/v1/stats", said.HealthURL + "/healthz"} {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s answers %d", url, resp.StatusCode)
		}
	}
	cancel()
	if err := out.Decode(&said); err != io.EOF {
		t.Errorf("there is more: %+v, %v", said, err)
	}
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d: %s", got, &errs)
	}
}
