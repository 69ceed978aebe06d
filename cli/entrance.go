package cli

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/httpapi"
)

// An entrance controls access: the tokens of callers and the certificate of the server. SIGHUP
// reads both again.
type entrance struct {
	tokenFile    string
	tokens       []edge.Token
	callers      *edge.Callers // nil: no tokens
	certificates *certificates // nil: no TLS
}

// entrance checks the settings of access, and reads the files. All faults are noted in bad.
func (s *settings) entrance(bad *faults) *entrance {
	e := &entrance{tokenFile: s.TokenFile}
	if s.TokenFile != "" {
		var err error
		e.tokens, err = readTokens(s.TokenFile)
		if err == nil {
			e.callers, err = edge.NewCallers(e.tokens)
		}
		for _, fault := range flattenedErrors(err) {
			bad.add("token-file: %w", fault)
		}
	}
	switch {
	case (s.TLSCert == "") != (s.TLSKey == ""):
		bad.add("tls-cert, tls-key: want both or neither")
	case s.TLSCert != "":
		e.certificates = &certificates{cert: s.TLSCert, key: s.TLSKey, clientCA: s.TLSClientCA}
		for _, fault := range flattenedErrors(e.certificates.read()) {
			bad.include(fault)
		}
	case s.TLSClientCA != "":
		bad.add("tls-client-ca: want tls-cert and tls-key with it")
	}
	if s.MaxBody < httpapi.LeastMaxBody || s.MaxBody > httpapi.MostMaxBody {
		bad.add("max-body: must be from %d to %d", httpapi.LeastMaxBody, httpapi.MostMaxBody)
	}
	if s.MaxAnswers < httpapi.LeastMaxAnswers || s.MaxAnswers > httpapi.MostMaxAnswers {
		bad.add("max-answers: must be from %d to %d", httpapi.LeastMaxAnswers, httpapi.MostMaxAnswers)
	}
	if s.MaxConnections < 1 || s.MaxConnections > mostConnections {
		bad.add("max-connections: must be from 1 to %d", mostConnections)
	}
	if n := s.MaxConnectionsPerAddress; n != 0 && (n < 1 || n > mostConnections) {
		bad.add("max-connections-per-address: must be from 1 to %d", mostConnections)
	}
	if s.MaxWaiting < 1 || s.MaxWaiting > edge.MostWaiting {
		bad.add("max-waiting: must be from 1 to %d", edge.MostWaiting)
	}
	if s.MaxWaitingPerToken < 1 || s.MaxWaitingPerToken > edge.MostWaiting {
		bad.add("max-waiting-per-token: must be from 1 to %d", edge.MostWaiting)
	}
	for _, h := range s.AllowedHost {
		if wrong := httpapi.CheckHost(h); wrong != "" {
			bad.add("allowed-host: %q %s", h, wrong)
		}
	}
	return e
}

// hosts returns the names that this server has.
func (s *settings) hosts() []string {
	all := slices.Clone(s.AllowedHost)
	add := func(name string) {
		if name != "" && httpapi.CheckHost(name) == "" {
			all = append(all, name)
		}
	}
	if name, err := os.Hostname(); err == nil {
		add(name)
	}
	for _, addr := range []string{s.Listen, s.HealthListen} {
		if name, _, err := net.SplitHostPort(addr); err == nil {
			add(name)
		}
	}
	if u, err := url.Parse(s.Advertise); err == nil {
		add(u.Hostname())
	}
	return append([]string{"localhost"}, all...)
}

const mostConnections = 1_000_000

func flattenedErrors(err error) []error {
	if all := flattened(err); all != nil {
		return all.Errors
	}
	return nil
}

// warn logs what an operator should know about access.
func (e *entrance) warn(beyond bool, log *slog.Logger) {
	if e.certificates == nil {
		if beyond && e.tokenFile != "" {
			log.Warn("tokens cross the network in the clear: set tls-cert and tls-key, or put a TLS proxy in front")
		}
		return
	}
	if ends := e.certificates.ends(); time.Now().After(ends) {
		log.Warn("the certificate has expired", "ended", ends)
	}
}

// watch reads the files again whenever the process gets SIGHUP, until ctx ends. SIGHUP never ends
// the process, also without files to read and during the shutdown: its default effect would be a
// disorderly end, which a service manager that reloads does not expect.
func (e *entrance) watch(ctx context.Context, hangups <-chan os.Signal, ways *ways, log *slog.Logger) {
	go func() {
		for {
			select {
			case <-hangups:
				if e.tokenFile == "" && e.certificates == nil && ways.secretFile == "" {
					log.Info("there are no tokens, no certificate and no secrets to read again")
				}
				e.reload(log)
				ways.reload(log)
			case <-ctx.Done():
				return
			}
		}
	}()
}

// reload reads the files again. A faulty file changes nothing.
func (e *entrance) reload(log *slog.Logger) {
	if e.tokenFile != "" {
		tokens, err := readTokens(e.tokenFile)
		if err == nil {
			err = e.callers.Set(tokens)
		}
		if err != nil {
			log.Error("the tokens were not replaced", "error", err)
		} else {
			added, removed, changed := changesOf(e.tokens, tokens)
			e.tokens = tokens
			log.Info("the tokens were read again", "added", added, "removed", removed, "changed", changed)
		}
	}
	if e.certificates != nil {
		if err := e.certificates.read(); err != nil {
			log.Error("the certificate was not replaced", "error", err)
		} else {
			log.Info("the certificate was read again", "ends", e.certificates.ends())
			e.warn(false, log)
		}
	}
}
