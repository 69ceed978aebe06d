package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/client"
)

// remote are the flags of every command that calls a server. A token is not a flag: every user of a
// machine can read the arguments of its processes.
type remote struct {
	Server    string        `default:"http://127.0.0.1:7480" placeholder:"URL" group:"Server" help:"URL of the server."`
	TokenFrom string        `placeholder:"FILE" group:"Server" help:"File that holds the access token. Default: the token in $LAPSE_TOKEN, if it is set."`
	CAFile    string        `name:"ca-file" placeholder:"FILE" group:"Server" help:"PEM file of the authorities that may have signed the server's certificate. Default: those of the system."`
	Timeout   time.Duration `default:"10s" group:"Server" help:"How long each request may take."`
	JSON      bool          `name:"json" group:"Server" help:"Print what the API answers: a JSON document, or one a line for lists."`
}

// A session is a command's connection to its server and its user.
type session struct {
	*client.Client
	aside    *client.Client // for questions of whose answers nothing is printed
	std      streams
	json     bool
	recorder *recorder
}

// A caller is a command that calls a server. Its remote has check, for those that need none.
type caller interface {
	connect(std streams, bad *faults) (*session, error)
	check(bad *faults) // notes what is wrong with the arguments and flags
	call(ctx context.Context, s *session) error
}

func (r *remote) check(*faults) {}

// connect makes a session. All that is wrong with the flags is reported at once.
func (r *remote) connect(std streams, bad *faults) (*session, error) {
	token := tokenFrom(r.TokenFrom, bad)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64 // an import makes many calls at once
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if r.CAFile != "" {
		pem, err := os.ReadFile(r.CAFile)
		pool := x509.NewCertPool()
		if err != nil {
			bad.add("ca-file: %w", err)
		} else if !pool.AppendCertsFromPEM(pem) {
			bad.add("ca-file: %s holds no certificate in PEM form", r.CAFile)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	s := &session{std: std, json: r.JSON}
	o := client.Options{URL: r.Server, Token: token, Timeout: r.Timeout, UserAgent: "lapse"}
	o.HTTPClient = &http.Client{Transport: transport}
	var err error
	if s.aside, err = client.New(o); err != nil {
		bad.include(err)
		return s, bad.err()
	}
	s.Client = s.aside
	if r.JSON {
		s.recorder = &recorder{inner: transport}
		o.HTTPClient = &http.Client{Transport: s.recorder}
		s.Client, err = client.New(o)
		bad.include(err)
	}
	return s, bad.err()
}

// tokenFrom is the token in a file, or that of the environment if there is no file.
func tokenFrom(file string, bad *faults) string {
	if file == "" {
		return os.Getenv("LAPSE_TOKEN")
	}
	text, err := os.ReadFile(file)
	token := strings.TrimSpace(string(text))
	switch {
	case err != nil:
		bad.add("token-from: %w", err)
	case token == "":
		bad.add("token-from: %s is empty", file)
	}
	return token
}

// A recorder keeps the body of the last answer, for --json: the API's answer is printed unchanged,
// including fields that this program does not know. A stream of events, which has no end, is not
// kept.
type recorder struct {
	inner http.RoundTripper
	last  bytes.Buffer
}

// RoundTrip records the answer while it is read.
func (t *recorder) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.inner.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	t.last.Reset()
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return resp, nil
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.TeeReader(resp.Body, &t.last), resp.Body}
	return resp, nil
}

// print writes the last answer: unchanged with --json, otherwise by human. With --json it writes
// nothing for an answer without a body.
func (s *session) print(human func(io.Writer)) error {
	var text bytes.Buffer
	if !s.json {
		human(&text)
	} else if s.recorder.last.Len() > 0 {
		text.Write(plainJSON(bytes.TrimSpace(s.recorder.last.Bytes())))
		text.WriteByte('\n')
	}
	_, err := s.std.out.Write(text.Bytes())
	return err
}

// printList is print for an answer that holds a list under a name: with --json, one element a line.
func (s *session) printList(name string, human func(io.Writer)) error {
	if !s.json {
		return s.print(human)
	}
	var answer map[string]json.RawMessage
	var list []json.RawMessage
	if err := json.Unmarshal(s.recorder.last.Bytes(), &answer); err != nil {
		return err
	}
	if err := json.Unmarshal(answer[name], &list); err != nil {
		return err
	}
	var text bytes.Buffer
	for _, element := range list {
		text.Write(plainJSON(element))
		text.WriteByte('\n')
	}
	_, err := s.std.out.Write(text.Bytes())
	return err
}

// each calls do for every name in turn, also after a failure; "-" stands for the lines of standard
// input. The errors name the element.
func each(names []string, do func(name string) error) error {
	names, err := expand(names)
	if err != nil {
		return err
	}
	var all []error
	for _, name := range names {
		if err := do(name); err != nil {
			named := strings.HasSuffix(err.Error(), ": "+name) // by the server
			if !named && (len(names) > 1 || errors.Is(err, client.ErrNotFound)) {
				err = fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, err)
		}
	}
	if len(names) > 1 && len(all) > 0 {
		return &failures{fmt.Sprintf("%d of %d failed:", len(all), len(names)), all}
	}
	return errors.Join(all...)
}

// expand replaces "-" by the lines of standard input that are not empty.
func expand(names []string) ([]string, error) {
	var all []string
	for _, name := range names {
		if name != "-" {
			all = append(all, name)
			continue
		}
		text, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		all = append(all, strings.Fields(string(text))...)
	}
	return all, nil
}

// input reads a flag's value that may be elsewhere: "-" is standard input, "@name" a file.
func input(flag, value string) ([]byte, error) {
	var text []byte
	var err error
	name, isFile := strings.CutPrefix(value, "@")
	switch {
	case value == "-":
		text, err = io.ReadAll(os.Stdin)
	case isFile:
		text, err = os.ReadFile(name)
	default:
		return []byte(value), nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errSettings, flag, err)
	}
	return text, nil
}
