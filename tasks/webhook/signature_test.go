package webhook

import (
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-multierror"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	oldSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
)

// A request is one that a receiver got.
type request struct {
	http.Header
	body []byte
}

// verified reports whether a receiver that has a secret accepts a request as genuine.
func (r request) verified(t *testing.T, secret string) bool {
	t.Helper()
	v, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return v.Verify(r.body, r.Header) == nil
}

// The receiver checks with the library of the specification, before, during and after a
// change of the secret.
func TestSignatureAndRotation(t *testing.T) {
	got := make(chan request, 1)
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- request{r.Header, body}
	})
	cfg := here
	cfg.Secrets = map[string][]string{"shop": {oldSecret}}
	w := newWay(t, cfg)
	d := to(t, w, s.URL, "secret", "shop")
	// White space around a payload belongs to it.
	const payload = " \r\n\t{\"order\":42,\n \"ü\": \"\\u0000\"}\n "
	send := func() request {
		t.Helper()
		task := order(payload)
		task.ID = "order.42"
		if err := d.Deliver(t.Context(), task); err != nil {
			t.Fatal(err)
		}
		return <-got
	}
	for _, c := range []struct {
		secrets  []string
		old, new bool
	}{
		{[]string{oldSecret}, true, false},
		{[]string{newSecret, oldSecret}, true, true},
		{[]string{newSecret}, false, true},
	} {
		if err := w.SetSecrets(map[string][]string{"shop": c.secrets}); err != nil {
			t.Fatal(err)
		}
		r := send()
		if string(r.body) != payload {
			t.Errorf("the receiver got %q", r.body)
		}
		if r.verified(t, oldSecret) != c.old || r.verified(t, newSecret) != c.new {
			t.Errorf("%d secrets: %s", len(c.secrets), r.Get(webhookSignature))
		}
		if n := len(strings.Fields(r.Get(webhookSignature))); n != len(c.secrets) {
			t.Errorf("%d signatures for %d secrets", n, len(c.secrets))
		}
		// The id is the same with every attempt. It has no full stop, which would make
		// the signed text ambiguous.
		if r.Get(webhookID) != "order%2E42" || r.Get(ceID) != "order.42" {
			t.Errorf("ids %q and %q", r.Get(webhookID), r.Get(ceID))
		}
		r.body[0]++
		if r.verified(t, oldSecret) || r.verified(t, newSecret) {
			t.Error("a changed body is taken for genuine")
		}
	}
}

// A request that should be signed is never sent unsigned.
func TestSecretThatVanishes(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request came") })
	cfg := here
	cfg.Secrets = map[string][]string{"shop": {oldSecret}, "other": {newSecret}}
	w := newWay(t, cfg)
	d := to(t, w, s.URL, "secret", "shop")
	if err := w.SetSecrets(map[string][]string{"other": {newSecret}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Deliver(t.Context(), order("{}")); err == nil || !strings.Contains(err.Error(), "secret shop is not there") {
		t.Errorf("got %v", err)
	}
	w.counted(t, "unsigned")
}

func TestBadSecrets(t *testing.T) {
	short := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 23)))
	long := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 65)))
	bad := map[string][]string{
		"none":       {},
		"bad name":   {oldSecret},
		"plain":      {strings.TrimPrefix(oldSecret, "whsec_")},
		"private":    {"whsk_" + strings.TrimPrefix(oldSecret, "whsec_")},
		"short":      {"whsec_" + short},
		"long":       {newSecret, "whsec_" + long},
		"no base64":  {"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!"},
		"padding":    {newSecret[:len(newSecret)-1]},
		"line feed":  {oldSecret + "\n"},
		"empty":      {""},
		"many":       strings.Fields(strings.Repeat(oldSecret+" ", 11)),
		"good.other": {oldSecret},
	}
	w := newWay(t, Config{Secrets: map[string][]string{"before": {oldSecret}}})
	err := w.SetSecrets(bad)
	all, ok := err.(*multierror.Error) //nolint:errorlint // it is what is promised
	if !ok || len(all.Errors) != len(bad)-1+0 {
		t.Errorf("got %v", err)
	}
	for _, part := range []string{"MfKQ", "MDEy", short[:8]} {
		if strings.Contains(err.Error(), part) {
			t.Errorf("the error holds a part of a secret: %v", err)
		}
	}
	if !w.secrets.Load().has("before") || w.secrets.Load().has("good.other") {
		t.Error("bad secrets have changed something")
	}
}

func TestTimestampIsOfTheAttempt(t *testing.T) {
	got := make(chan request, 1)
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { got <- request{Header: r.Header} })
	cfg := here
	cfg.Secrets = map[string][]string{"shop": {oldSecret}}
	d := to(t, newWay(t, cfg), s.URL, "secret", "shop")
	late := order("")
	late.Due = time.Now().Add(-time.Hour)
	if err := d.Deliver(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if r := <-got; !r.verified(t, oldSecret) {
		t.Error("a task that is late is taken for replayed")
	}
}
