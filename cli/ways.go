package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/goccy/go-yaml"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/pubsub"
	"github.com/lapsehq/lapse/tasks/stream"
	"github.com/lapsehq/lapse/tasks/webhook"
)

// ways are the ways of delivery that topics of this server may choose, besides pull.
type ways struct {
	webhook    *webhook.Way
	secretFile string   // "": there are no secrets
	names      []string // of the secrets

	keyevent *respapi.Keyevent

	redis      []tasks.Way // those that need a Redis, if there is one
	closeRedis func()      // closes their connections

	scheduler atomic.Pointer[tasks.Scheduler] // once there is one
}

// list returns the ways for the configuration of package tasks.
func (w *ways) list() []tasks.Way {
	return append([]tasks.Way{w.webhook, w.keyevent}, w.redis...)
}

// close is called once the scheduler is closed.
func (w *ways) close() {
	w.webhook.Close()
	w.closeRedis()
}

// ways makes the ways of delivery. All faults are noted in bad. addr is what the server
// listens on, nil if that is wrong.
func (s *settings) ways(addr *net.TCPAddr, bad *faults) *ways {
	w := &ways{secretFile: s.WebhookSecretFile, keyevent: &respapi.Keyevent{}}
	w.webhook = s.webhook(addr, bad)
	w.redis, w.closeRedis = s.redisWays(bad)
	if s.WebhookSecretFile != "" {
		if err := w.readSecrets(); err != nil {
			for _, fault := range flattenedErrors(err) {
				bad.add("webhook-secret-file: %w", fault)
			}
		}
	}
	return w
}

// webhook makes the way of delivery by HTTP. A server that only this machine can reach counts as a
// developer's server, whose receivers are on this machine too, unless a setting says otherwise.
func (s *webhookSettings) webhook(addr *net.TCPAddr, bad *faults) *webhook.Way {
	allow := s.WebhookAllow
	switch {
	case len(allow) == 1 && allow[0] == "none":
		allow = nil
	case len(allow) == 0 && addr != nil && addr.IP.IsLoopback():
		allow = []string{"loopback"}
	}
	w, err := webhook.New(webhook.Config{Allow: allow})
	if err != nil {
		for _, fault := range flattenedErrors(err) {
			bad.add("webhook-%w", fault)
		}
		w, _ = webhook.New(webhook.Config{}) // to check the topics all the same
	}
	return w
}

// inOneLine writes errors as one line of a log.
func inOneLine(all []error) string {
	texts := make([]string, len(all))
	for i, err := range all {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// readSecrets reads the file of secrets, a YAML mapping of lists:
//
//	shop: [whsec_<new>, whsec_<old>]
//
// The error lists everything that is wrong, and repeats no secret; then the secrets stay
// as they were.
func (w *ways) readSecrets() error {
	text, err := os.ReadFile(w.secretFile)
	if err != nil {
		return err
	}
	var names map[string]any
	if err := yaml.Unmarshal(text, &names); err != nil {
		where := ""
		if e := yaml.Error(nil); errors.As(err, &e) && e.GetToken() != nil {
			where = fmt.Sprintf(":%d", e.GetToken().Position.Line)
		}
		// The parser's own message may repeat a secret.
		return fmt.Errorf("%s%s: want a YAML mapping of names to lists of secrets", w.secretFile, where)
	}
	secrets := make(map[string][]string, len(names))
	for name, value := range names {
		list, _ := value.([]any)
		secrets[name] = make([]string, len(list))
		for i, v := range list {
			secrets[name][i], _ = v.(string) // "" is refused like any other wrong value
		}
	}
	err = w.webhook.SetSecrets(secrets)
	if all := flattened(err); all != nil {
		for i, err := range all.Errors {
			all.Errors[i] = fmt.Errorf("%s: %w", w.secretFile, err)
		}
		all.ErrorFormat = inOneLine
		return all
	}
	w.names = slices.Sorted(maps.Keys(secrets))
	return nil
}

// attach is called once there is a scheduler.
func (w *ways) attach(s *tasks.Scheduler) {
	w.scheduler.Store(s)
	s.Admin().Reconsider() // secrets may have come since it was opened
}

// reload reads the files again that may change while the server runs. A faulty file changes
// nothing.
func (w *ways) reload(log *slog.Logger) {
	if w.secretFile == "" {
		return
	}
	if err := w.readSecrets(); err != nil {
		log.Error("the secrets of webhooks were not replaced", "error", err)
		return
	}
	log.Info("the secrets of webhooks were read again", "names", w.names)
	if s := w.scheduler.Load(); s != nil {
		s.Admin().Reconsider() // topics whose secret was missing
	}
}

// deliveryConnections is how many batches may be sent to each server of Redis at once; more wait
// for one another.
const deliveryConnections = 64

// redisWays returns the ways of delivery that need a Redis, if there is one, and the function that
// closes their connections. No connection is made yet. A fault is noted in bad.
func (s *settings) redisWays(bad *faults) (ways []tasks.Way, closeRedis func()) {
	name, url := "delivery-redis", s.DeliveryRedis
	if url == "" {
		name, url = "redis", s.Redis
	}
	if url == "" {
		return nil, func() {}
	}
	client, err := redisledger.Connect(url, deliveryConnections)
	closeRedis = func() { _ = client.Close() }
	if err != nil {
		closeRedis = func() {}
		// Otherwise it is noted with the ledger's faults.
		if name != "redis" || redisledger.ParseURL(url) == nil {
			bad.add("%s: %w", name, err)
		}
	}
	// With a fault the ways exist all the same, so that topics that choose them are checked, too.
	return []tasks.Way{
		stream.New(client, stream.Config{Prefix: s.RedisPrefix}),
		pubsub.New(client, pubsub.Config{Prefix: s.RedisPrefix}),
	}, closeRedis
}
