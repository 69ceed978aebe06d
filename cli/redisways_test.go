package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// Tasks on disk are delivered into a Redis as streams, and on channels.
func TestDeliveryIntoRedis(t *testing.T) {
	server := redistest.Start(t)
	config := filepath.Join(t.TempDir(), "lapse.yaml")
	topics := "topics:\n  seeded:\n    delivery: {kind: stream, max_len: 7}\n"
	if err := os.WriteFile(config, []byte(topics), 0o600); err != nil {
		t.Fatal(err)
	}
	url, stop := started(t, "--data", t.TempDir(), "--delivery-redis", server.URL(), "--redis-prefix", "mine:", "--config", config)
	answered(t, http.StatusOK, put(url+"/v1/topics/set", `{"delivery":{"kind":"stream"}}`))
	for _, topic := range []string{"seeded", "set"} {
		answered(t, http.StatusCreated, post(url+"/v1/tasks", `{"id":"in-`+topic+`","topic":"`+topic+`","delay":"0s","payload":{"a":1}}`))
		server.Wait("the task is in its stream", func(ctx context.Context, c *redis.Client) bool {
			return c.XLen(ctx, "mine:stream:"+topic).Val() == 1
		})
		if text := fmt.Sprint(server.Do("xrange", "mine:stream:"+topic, "-", "+")); !strings.Contains(text, "[id in-"+topic) || !strings.Contains(text, `payload {"a":1}`) {
			t.Errorf("%s: %s", topic, text)
		}
	}
	body := answered(t, http.StatusUnprocessableEntity, put(url+"/v1/topics/set", `{"delivery":{"kind":"pubsub","compat":"keyevent","db":-1}}`))
	if !bytes.Contains(body, []byte("delivery.db")) {
		t.Errorf("%s", body)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func put(url, body string) func() (*http.Request, error) {
	ask := post(url, body)
	return func() (*http.Request, error) {
		request, err := ask()
		request.Method = http.MethodPut
		return request, err
	}
}

// A server without any Redis refuses topics that want one.
func TestNoRedisToDeliverInto(t *testing.T) {
	url, _ := started(t, "--data", t.TempDir())
	for _, kind := range []string{"stream", "pubsub"} {
		body := answered(t, http.StatusUnprocessableEntity, put(url+"/v1/topics/x", `{"delivery":{"kind":"`+kind+`"}}`))
		if !bytes.Contains(body, []byte("delivery.kind")) {
			t.Errorf("%s: %s", kind, body)
		}
	}
}

func TestDeliveryRedisSettings(t *testing.T) {
	for _, test := range []struct {
		args []string
		text string
	}{
		{[]string{"--delivery-redis", "http://:s3cret@x"}, "delivery-redis: "},
		{[]string{"--delivery-redis", "rediss://:s3cret@x?ca=/nowhere"}, "delivery-redis: "},
		{[]string{"--redis", "rediss://:s3cret@x?ca=/nowhere", "--node", "n"}, "redis: "},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"serve"}, test.args...), streams{&out, &errs})
		if code != exitUsage || strings.Count(errs.String(), test.text) != 1 || strings.Contains(errs.String(), "s3cret") || out.Len() > 0 {
			t.Errorf("%q: exit code %d: %s", test.args, code, &errs)
		}
	}
	if text := printed(t, "--delivery-redis", "redis://u:s3cret@h"); !strings.Contains(text, `delivery_redis: "redis://u:***@h"`) || strings.Contains(text, "s3cret") {
		t.Errorf("%s", text)
	}
}
