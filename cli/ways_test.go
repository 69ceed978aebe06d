package cli

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/webhook"
)

const (
	firstSecret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secondSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
)

// A developer's server delivers to receivers on the same machine, signed with the secrets of a
// file, which SIGHUP reads again; also after a start without the secret that a topic needs.
func TestServeWebhooks(t *testing.T) {
	got := make(chan string, 10) // with which secrets they were signed
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		signed := r.Header.Get("ce-id")
		for _, secret := range []string{firstSecret, secondSecret} {
			if v, err := standardwebhooks.NewWebhook(secret); err == nil && v.Verify(body, r.Header) == nil {
				signed += " " + secret[6:9]
			}
		}
		got <- signed
	}))
	t.Cleanup(receiver.Close)
	is := func(want string) {
		t.Helper()
		select {
		case signed := <-got:
			if signed != want {
				t.Errorf("got %q, want %q", signed, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%q did not come", want)
		}
	}
	secrets := written(t, "secrets.yaml", "shop: ["+firstSecret+"]\n")
	args := []string{"--data", t.TempDir(), "--webhook-secret-file", secrets}
	url, stop := started(t, args...)
	s := &shell{t, url}
	until := func(command []string, part string) {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for over := time.After(30 * time.Second); ; {
			if _, out, errs := s.run(command...); strings.Contains(out+errs, part) {
				return
			}
			select {
			case <-tick.C:
			case <-over:
				t.Fatalf("%q never says %q", command, part)
			}
		}
	}
	delivery := func(secret string) string {
		return `{"kind":"webhook","url":"` + receiver.URL + `","secret":"` + secret + `"}`
	}
	s.fails(exitUsage, []string{"topics", "set", "x", "--delivery", delivery("shpo")}, "delivery.secret must name a secret that this process has")
	s.prints([]string{"topics", "set", "x", "--delivery", delivery("shop")}, `webhook {"secret":"shop","url":"`)
	if out := s.ok("topics", "get", "x", "--json"); strings.Contains(out, "whsec") {
		t.Errorf("a secret can be read: %s", out)
	}
	s.ok("schedule", "x", "--id", "a", "--delay", "0s")
	is("a MfK")

	hangup := func(text string) {
		t.Helper()
		overwrite(t, secrets, written(t, "new.yaml", text))
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	hangup("shop: [" + secondSecret + ", " + firstSecret + "]\nother: [" + firstSecret + "]\n")
	until([]string{"topics", "set", "y", "--delivery", delivery("other")}, "webhook")
	s.ok("schedule", "x", "--id", "b", "--delay", "0s")
	is("b MfK MDE")

	if code := stop(); code != exitOK {
		t.Fatal(code)
	}
	overwrite(t, secrets, written(t, "new.yaml", "{}"))
	url, _ = started(t, args...)
	s.url = url
	until([]string{"topics", "get", "x"}, "undeliverable")
	s.ok("schedule", "x", "--id", "c", "--delay", "0s")
	hangup("shop: [" + secondSecret + "]\n")
	is("c MDE")
}

func TestServeRefusesWebhookSettings(t *testing.T) {
	secrets := written(t, "secrets.yaml", "shop: ["+firstSecret+"x]\nempty: []\ntext: "+firstSecret+"\nnumber: [7]\n")
	got := refusal("--webhook-allow=private,10.0.0.1/8", "--webhook-allow=shop.example", "--webhook-secret-file="+secrets)
	for _, part := range []string{"webhook-allow[1]: must be a network", "webhook-allow[2]: must be loopback, private,",
		"secret shop: value 1 must be whsec_", "secret empty: must have", "secret text: must have", "secret number: value 1 must be"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q is not in %s", part, got)
		}
	}
	if strings.Contains(got, "MfK") {
		t.Errorf("a secret is shown: %s", got)
	}
	for _, text := range []string{"- shop\n", "shop: {" + firstSecret + "\n", "shop: [" + firstSecret + "]\nshop: [" + firstSecret + "]\n"} {
		got := refusal("--webhook-secret-file=" + written(t, "secrets.yaml", text))
		if !strings.Contains(got, "want a YAML mapping of names to lists of secrets") || strings.Contains(got, "MfK") {
			t.Errorf("%q: %s", text, got)
		}
	}
	if got := refusal("--webhook-secret-file=/no/such/file"); !strings.Contains(got, "webhook-secret-file: open /no/such/file") {
		t.Error(got)
	}
}

// The addresses that may be reached depend on where the server listens, unless a setting says
// otherwise.
func TestServeAllows(t *testing.T) {
	for _, c := range []struct {
		args  []string
		local bool
	}{
		{[]string{"--listen=127.0.0.1:7480"}, true},
		{[]string{"--listen=[::1]:7480"}, true},
		{[]string{"--listen=0.0.0.0:7480"}, false},
		{[]string{"--listen=0.0.0.0:7480", "--webhook-allow=loopback"}, true},
		{[]string{"--listen=127.0.0.1:7480", "--webhook-allow=private"}, false},
		{[]string{"--listen=127.0.0.1:7480", "--webhook-allow=none"}, false},
	} {
		got, _, bad, err := parsed(t, "insecure: true\n", c.args...)
		if err != nil {
			t.Fatal(err)
		}
		addr, _ := got.addresses(bad)
		w := got.ways(addr, bad)
		t.Cleanup(w.close)
		if bad.err() != nil {
			t.Error(c.args, bad.err())
		}
		if _, err := w.webhook.Deliverer("x", []byte(`{"url":"http://127.0.0.1"}`)); (err == nil) != c.local {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}

// A fault that SIGHUP finds in the secrets is one line of the log, which names the file and repeats
// no secret.
func TestWrongSecretsInOneLine(t *testing.T) {
	way, err := webhook.New(webhook.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer way.Close()
	w := &ways{webhook: way, secretFile: written(t, "secrets.yaml", "shop: [nope]\nother: [whsec_nope]\n")}
	err = w.readSecrets()
	if err == nil {
		t.Fatal("they were taken")
	}
	text := err.Error()
	if strings.Contains(text, "\n") || strings.Contains(text, "nope") || strings.Count(text, w.secretFile+": secret ") != 2 {
		t.Errorf("got %q", text)
	}
}

// A file with a value that JSON cannot express is refused with that reason, and no other about the
// topic.
func TestDeliveryInFileThatIsNoJSON(t *testing.T) {
	for _, number := range []string{".inf", ".nan"} {
		file := written(t, "lapse.yaml", "topics:\n  x:\n    delivery: {kind: webhook, url: \"https://shop.example/\", timeout: "+number+"}\n")
		got := refusal("--config=" + file)
		if !strings.Contains(got, "topics.x.delivery: must hold only what JSON can say") || strings.Contains(got, "url") || strings.Contains(got, "json:") {
			t.Errorf("%s: %s", number, got)
		}
	}
}

// Secrets that arrive between the start of the scheduler and the moment from which it can be
// notified help the topics that were found without.
func TestSecretsThatComeDuringTheStart(t *testing.T) {
	file := written(t, "secrets.yaml", "shop: ["+firstSecret+"]\n")
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	open := func(w *ways) *tasks.Scheduler {
		ledger, err := diskledger.Open(dir, diskledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := tasks.Open(t.Context(), ledger, tasks.Config{Ways: w.list(), Log: log})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	end := func(s *tasks.Scheduler, w *ways) {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		w.close()
	}
	var bad faults
	set := settings{webhookSettings: webhookSettings{WebhookSecretFile: file}}
	w := set.ways(nil, &bad)
	s := open(w)
	topic := tasks.TopicSettings{Kind: "webhook", Delivery: []byte(`{"url":"https://shop.example/","secret":"shop"}`)}
	if _, err := s.SetTopic(t.Context(), "x", topic, -1); err != nil {
		t.Fatal(err)
	}
	end(s, w)

	if err := os.WriteFile(file, []byte("other: ["+firstSecret+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w = set.ways(nil, &bad)
	s = open(w)
	defer end(s, w)
	if got, err := s.Topic("x"); err != nil || got.Undeliverable == "" {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("shop: ["+firstSecret+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.reload(log)
	w.attach(s)
	if got, err := s.Topic("x"); err != nil || got.Undeliverable != "" {
		t.Errorf("undeliverable: %s, %v", got.Undeliverable, err)
	}
	if err := bad.err(); err != nil {
		t.Error(err)
	}
}
