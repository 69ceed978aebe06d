//go:build fault

package crash

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-json"
)

// Topics besides the one that is pulled.
const (
	hookTopic  = "hook"  // a webhook's answer settles
	asyncTopic = "async" // a webhook's receipt settles, at any node
)

var topics = []string{topic, hookTopic, asyncTopic}

// hookTimeout is how long an attempt at a webhook may take, also where its node is
// short of processors.
const hookTimeout = 5 * time.Second

// hooks receives webhooks. Each node signs them with a secret of its own, which identifies the
// node.
type hooks struct {
	t       *testing.T
	fleet   *fleet
	server  *httptest.Server
	secrets map[string][]byte // by node
	ctx     context.Context   // while there are acknowledgements to send

	sending sync.WaitGroup

	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

func newHooks(f *fleet) *hooks {
	h := &hooks{t: f.t, fleet: f, secrets: map[string][]byte{}, rng: rand.New(rand.NewPCG(1, 2))}
	h.server = httptest.NewServer(h)
	ctx, cancel := context.WithCancel(context.Background())
	h.ctx = ctx
	f.t.Cleanup(func() {
		h.server.CloseClientConnections()
		h.server.Close()
		cancel()
		h.sending.Wait()
	})
	return h
}

// secretFile makes the secret of a node.
func (h *hooks) secretFile(node string) string {
	h.secrets[node] = []byte(strings.Repeat(node, 32))
	file := filepath.Join(h.t.TempDir(), "secrets.yaml")
	text := fmt.Sprintf("hook: [whsec_%s]\n", base64.StdEncoding.EncodeToString(h.secrets[node]))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return file
}

// setUp makes the topics. Failed attempts come back soon.
func (h *hooks) setUp(r *run) {
	h.t.Helper()
	const retry = `"retry":{"max_attempts":1000,"min_backoff":"50ms","max_backoff":"500ms"}`
	for name, settings := range map[string]string{
		topic: `{` + retry + `}`,
		hookTopic: fmt.Sprintf(`{"delivery":{"kind":"webhook","url":%q,"secret":"hook","timeout":%q},%s}`,
			h.server.URL, hookTimeout, retry),
		asyncTopic: fmt.Sprintf(`{"delivery":{"kind":"webhook","url":%q,"secret":"hook","timeout":%q,"mode":"async"},"lease":"2s",%s}`,
			h.server.URL, hookTimeout, retry),
	} {
		if a := h.fleet.ask(r, http.MethodPut, "/v1/topics/"+name, []byte(settings)); a.outcome != Done {
			h.t.Fatalf("topic %s: %d %s", name, a.status, a.body)
		}
	}
}

// ServeHTTP receives a webhook, accepts most of them, and fails or forgets others.
func (h *hooks) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	d := &Delivery{Span: Span{Start: time.Now()}}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the receiver has not promised to handle it
	}
	var payload struct{ N int }
	err = json.Unmarshal(body, &payload)
	seconds, err2 := strconv.ParseInt(req.Header.Get("Webhook-Timestamp"), 10, 64)
	due, err3 := time.Parse(time.RFC3339, req.Header.Get("Lapse-Due"))
	attempt, err4 := strconv.Atoi(req.Header.Get("Lapse-Attempt"))
	for _, err := range []error{err, err2, err3, err4} {
		if err != nil {
			h.t.Errorf("a webhook: %v", err)
			return
		}
	}
	d.Signed, d.Due, d.Attempt = time.Unix(seconds, 0), due, attempt
	d.Owner = h.signer(req, body)
	d.Node = d.Owner
	d.LeaseUntil = d.Start.Add(hookTimeout)
	receipt := req.Header.Get("Lapse-Receipt")
	if receipt != "" {
		if d.LeaseUntil, err = time.Parse(time.RFC3339, req.Header.Get("Lapse-Lease-Until")); err != nil {
			h.t.Error(err)
		}
	}
	h.mu.Lock()
	dice, seed := h.rng.IntN(100), h.rng.Uint64()
	h.mu.Unlock()
	failed := dice < 3
	d.End = time.Now()
	if receipt == "" {
		// The receiver does not learn whether the answer arrives.
		said := Settlement{Span: d.Span, Verb: Ack, Outcome: Done}
		if failed {
			said.Verb, said.Outcome = Release, Unknown
		}
		d.Settlements = []Settlement{said}
	}
	h.fleet.history.Deliver(payload.N, d)
	if failed {
		w.WriteHeader(http.StatusInternalServerError)
		if receipt != "" {
			h.fleet.history.Settle(d, Settlement{Span: d.Span, Outcome: Unknown})
		}
		return
	}
	w.WriteHeader(http.StatusNoContent)
	if receipt != "" && dice < 97 {
		h.sending.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			h.fleet.settle(h.ctx, rng, "ack", []held{{receipt, d}})
		})
	}
}

// signer is the node that signed a webhook.
func (h *hooks) signer(req *http.Request, body []byte) string {
	given := strings.TrimPrefix(req.Header.Get("Webhook-Signature"), "v1,")
	for node, secret := range h.secrets {
		mac := hmac.New(sha256.New, secret)
		fmt.Fprintf(mac, "%s.%s.%s", req.Header.Get("Webhook-Id"), req.Header.Get("Webhook-Timestamp"), body)
		if base64.StdEncoding.EncodeToString(mac.Sum(nil)) == given {
			return node
		}
	}
	h.t.Errorf("a webhook bears the signature %q, of no node", given)
	return ""
}
