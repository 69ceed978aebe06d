package webhook

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// orderTo is a delivery of a task with a target of its own.
func orderTo(fields map[string]any) *tasks.Delivery {
	d := order("{}")
	d.Target = &tasks.Target{Kind: Kind, Settings: settingsOf(fields)}
	return d
}

// No hostile URL of a task makes a connection, whether it is refused when the task is accepted or
// when it is dialled. The topic's own URL, which is good, is not called instead.
func TestHostileTargets(t *testing.T) {
	trap := newTrap(t)
	n := newNames(t, map[string][]string{
		"loopback.test": {"127.0.0.1"}, "loopback6.test": {"::1"}, "mapped.test": {"::ffff:127.0.0.1"}, "private.test": {"10.0.0.1"},
		"metadata.test": {"169.254.169.254"}, "several.test": {"127.0.0.1", "::1", "10.0.0.1"}, "127.0.0.1.test": {"127.0.0.1"},
		"localhost": {"127.0.0.1", "::1"}, "a.localhost": {"127.0.0.1"}, "topic.test": {"127.0.0.1"},
	})
	dialled := 0
	for what, url := range hostile {
		url = strings.ReplaceAll(url, "PORT", trap.port)
		w := newWay(t, Config{Resolver: n.resolver()})
		d := to(t, w, "http://topic.test:"+trap.port).(*receiver)
		fields := map[string]any{"url": url}
		if _, err := d.CheckTarget(settingsOf(fields)); err == nil {
			dialled++
		} else {
			var invalid *tasks.InvalidError
			if !errors.As(err, &invalid) || len(invalid.Fields) != 1 || invalid.Fields[0].Field != "url" || strings.Contains(err.Error(), trap.port) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := d.Deliver(t.Context(), orderTo(fields)); err == nil {
			t.Errorf("%s is delivered", what)
		}
		for outcome, n := range w.Tally() {
			// The last two: there is no such scheme, and no such port.
			if n > 0 && outcome != "refused_address" && outcome != "dns" && outcome != "refused_target" && outcome != "broken" && outcome != "dial" {
				t.Errorf("%s counts as %s", what, outcome)
			}
		}
	}
	if n := trap.count.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
	if dialled < 5 {
		t.Errorf("only %d URLs were left to the check of the dialler", dialled)
	}
}

// urlAt returns the URL of a host, with HTTP unless it says otherwise.
func urlAt(host string) string {
	if strings.Contains(host, "://") {
		return host + "/"
	}
	return "http://" + host + "/"
}

// A task may choose only hosts that its topic lists, at the ports and with the schemes that it
// lists. A list that has become shorter holds for the
// tasks that were accepted before.
func TestTaskHosts(t *testing.T) {
	w := newWay(t, here)
	for _, c := range []struct {
		list     any
		yes, not []string
	}{
		{nil, []string{"shop.example", "127.0.0.1", "a.b"}, nil},
		{[]string{}, nil, []string{"shop.example", "127.0.0.1"}},
		{
			[]string{"Shop.example", "*.eu.example", "127.0.0.1"},
			[]string{"shop.example", "SHOP.example.", "a.eu.example", "a.b.eu.example", "127.0.0.1"},
			[]string{"eu.example", "xeu.example", "a.shop.example", "shop.example.evil", "127.0.0.2", "[::1]"},
		},
		{
			[]string{"any.example", "one.example:8443", "*.one.example:80", "https://tls.example", "https://both.example:8443", "[::1]:81", "::1"},
			[]string{"any.example:99", "https://any.example", "one.example:8443", "https://one.example:8443", "a.one.example", "https://tls.example", "https://tls.example:443", "https://both.example:8443", "[::1]:82"},
			[]string{"one.example", "https://one.example", "one.example:8444", "https://a.one.example", "tls.example", "tls.example:443", "https://tls.example:8443", "both.example:8443", "https://both.example"},
		},
		{
			[]string{"[::1]", "https://[2606:4700::0:2]", "zero.example:0443", "[2606:4700::3]:080"},
			[]string{"[::1]:7", "[0:0::1]", "https://[2606:4700::2]", "https://zero.example", "[2606:4700::3]"},
			[]string{"[2606:4700::2]", "zero.example", "[2606:4700::3]:81", "[2606:4700::4]"},
		},
	} {
		fields := []any{}
		if c.list != nil {
			fields = []any{"task_hosts", c.list}
		}
		d := to(t, w, "http://127.0.0.1:9", fields...).(*receiver)
		for _, host := range c.yes {
			if _, err := d.CheckTarget(settingsOf(map[string]any{"url": urlAt(host)})); err != nil {
				t.Errorf("%v: %s: %v", c.list, host, err)
			}
		}
		for _, host := range c.not {
			fields := map[string]any{"url": urlAt(host)}
			if _, err := d.CheckTarget(settingsOf(fields)); !errors.Is(err, tasks.ErrInvalid) {
				t.Errorf("%v: %s: %v", c.list, host, err)
			}
			if err := d.Deliver(t.Context(), orderTo(fields)); !errors.Is(err, errTarget) {
				t.Errorf("%v: %s is delivered: %v", c.list, host, err)
			}
		}
	}
	for _, bad := range []any{"shop.example", []any{1}, []string{"a b"}, []string{"*"}, []string{"ftp://a"}, []string{"https://"}, []string{"http://a/"}, []string{"a:"}, []string{"a:0"}, []string{"a:65536"}, []string{"127.1"}, []string{"::1:8080"}, []string{"*.10.0.0.1"}, []string{"*.[::1]"}, []string{"[a]"}, []string{"[10.0.0.1]"}, []string{"[::1"}, []string{"u@a"}} {
		if _, err := w.Deliverer("x", settingsOf(map[string]any{"url": "http://127.0.0.1:9", "task_hosts": bad})); !errors.Is(err, tasks.ErrInvalid) {
			t.Errorf("task_hosts %v: %v", bad, err)
		}
	}
}

// What a task may set, and what it gets from its topic.
func TestTargetFields(t *testing.T) {
	got := make(chan *http.Request, 1)
	hang := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return
		}
		got <- r
	})
	defer close(hang)
	w := newWay(t, here)
	d := to(t, w, s.URL+"/topic")
	one := orderTo(map[string]any{"headers": map[string]string{"authorization": "Bearer x", "tenant": "us", "content-type": "text/plain"}})
	one.Headers = map[string]string{"tenant": "eu", "other": "y"}
	if err := d.Deliver(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	r := <-got
	for name, value := range map[string]string{"authorization": "Bearer x", "tenant": "us", "other": "y", "content-type": "text/plain", "ce-id": "order-42"} {
		if all := r.Header.Values(name); len(all) != 1 || all[0] != value {
			t.Errorf("%s is %q; want %q", name, all, value)
		}
	}
	if r.URL.Path != "/topic" {
		t.Errorf("it came to %s", r.URL)
	}
	began := time.Now()
	if err := d.Deliver(t.Context(), orderTo(map[string]any{"url": s.URL + "/hangs", "timeout": "100ms"})); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	for field, text := range map[string]string{
		"url": `{"url":"http://a:b@c"}`, "timeout": `{"timeout":"1h"}`, "headers": `{"headers":{"lapse-topic":"x"}}`,
		"mode": `{"mode":"async"}`, "secret": `{"secret":"other"}`, "task_hosts": `{"task_hosts":[]}`,
	} {
		_, err := d.(*receiver).CheckTarget(json.RawMessage(text))
		var invalid *tasks.InvalidError
		if !errors.As(err, &invalid) || invalid.Fields[0].Field != field {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What tells of the death before a follow-up reaches its receiver, and nothing else of Lapse's.
func TestDeadHeaders(t *testing.T) {
	got := make(chan http.Header, 1)
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
	d := to(t, newWay(t, here), s.URL)
	one := order("{}")
	one.Headers = map[string]string{"lapse-dead-topic": "x", "lapse_dead_id": "a", "lapse-topic": "no", "lapse-deadline": "no"}
	if err := d.Deliver(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	h := <-got
	if h.Get("lapse-dead-topic") != "x" || h.Get("lapse-topic") != "order.unpaid" || h.Get("lapse-deadline") != "" {
		t.Errorf("%v", h)
	}
}
