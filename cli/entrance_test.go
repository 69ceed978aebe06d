package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// An authority signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	pair := a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "test authority"}})
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	a.file, _ = a.save(pair)
	return a
}

// sign makes a certificate; the first one signs itself.
func (a *authority) sign(c *x509.Certificate) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) server(name string) tls.Certificate {
	return a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
}

// save writes a certificate and its key to files.
func (a *authority) save(pair tls.Certificate) (cert, key string) {
	a.t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		a.t.Fatal(err)
	}
	cert = written(a.t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})))
	return cert, written(a.t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
}

// client is a client that trusts the authority and shows these certificates.
func (a *authority) client(shown ...tls.Certificate) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: shown}, ForceAttemptHTTP2: true}
	a.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func overwrite(t *testing.T, file, by string) {
	t.Helper()
	if err := os.Rename(by, file); err != nil {
		t.Fatal(err)
	}
}

// A fixture is the entrance of settings, with a server behind it.
type fixture struct {
	*entrance
	api *httpapi.Server
	url string
	log *slog.Logger
}

func fixtureOf(t *testing.T, s settings) *fixture {
	t.Helper()
	s.MaxBody, s.MaxAnswers, s.MaxConnections = 1<<20, 64<<20, 10
	s.MaxWaiting, s.MaxWaitingPerToken = 10, 10
	bad := &faults{}
	f := &fixture{entrance: s.entrance(bad), log: slog.New(slog.DiscardHandler)}
	if err := bad.err(); err != nil {
		t.Fatal(err)
	}
	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: f.log})
	if err != nil {
		t.Fatal(err)
	}
	if f.api, err = httpapi.New(httpapi.Config{Scheduler: scheduler, Log: f.log, Callers: f.callers}); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.url = "https://" + listener.Addr().String()
	server := f.api.HTTPServer()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = f.certificates.serve(server, f.api.LimitConnections(server, listener, s.MaxConnections))
	}()
	t.Cleanup(func() {
		server.Close()
		<-served
		if err := scheduler.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return f
}

// seen is what a client gets as an answer; the status is 0 if there was none.
type seen struct {
	status, proto int
	tls           uint16
}

func fetch(c *http.Client, url string) seen {
	a, err := c.Get(url)
	if err != nil {
		return seen{}
	}
	defer a.Body.Close()
	_, _ = io.Copy(io.Discard, a.Body)
	return seen{a.StatusCode, a.ProtoMajor, a.TLS.Version}
}

// HTTP/2 and HTTP/1.1 over TLS 1.2 at least, and the bound of a body holds.
func TestTLS(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.save(a.server("first"))
	f := fixtureOf(t, settings{accessSettings: accessSettings{TLSCert: cert, TLSKey: key}})
	client := a.client()
	if got := fetch(client, f.url+"/healthz"); got.status != 200 || got.proto != 2 || got.tls < tls.VersionTLS12 {
		t.Errorf("answered %+v", got)
	}
	old := a.client()
	old.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	if got := fetch(old, f.url+"/healthz"); got.status != 200 || got.proto != 1 {
		t.Errorf("answered %+v", got)
	}
	body, err := client.Post(f.url+"/v1/tasks", "application/json", strings.NewReader(`{"topic":"t","payload":"`+strings.Repeat("x", 17<<20)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	if body.Body.Close(); body.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body above the limit is answered %d", body.StatusCode)
	}
	ancient := a.client()
	ancient.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS11
	if got := fetch(ancient, f.url+"/healthz"); got.status != 0 {
		t.Error("TLS 1.1 was accepted")
	}
}

func TestClientCertificates(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	cert, key := a.save(a.server("server"))
	f := fixtureOf(t, settings{accessSettings: accessSettings{TLSCert: cert, TLSKey: key, TLSClientCA: a.file}})
	usage := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if got := fetch(a.client(a.sign(usage)), f.url+"/healthz"); got.status != 200 {
		t.Errorf("answered %d", got.status)
	}
	for name, client := range map[string]*http.Client{"none": a.client(), "a stranger's": a.client(stranger.sign(usage))} {
		if got := fetch(client, f.url+"/healthz"); got.status != 0 {
			t.Errorf("%s was let in", name)
		}
	}
}

// Files that are read again hold for later connections. A faulty file changes nothing.
func TestReload(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.save(a.server("first"))
	tokens := written(t, "tokens.yaml", lineOf("a", "old", "read"))
	f := fixtureOf(t, settings{accessSettings: accessSettings{TLSCert: cert, TLSKey: key, TokenFile: tokens}})
	is := func(name, token string, status int) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), "GET", f.url+"/v1/stats", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+token)
		got, err := a.client().Do(q)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if shown := got.TLS.PeerCertificates[0].Subject.CommonName; shown != name || got.StatusCode != status {
			t.Errorf("the certificate is that of %s, and %s is answered %d; want %s and %d", shown, token, got.StatusCode, name, status)
		}
	}
	is("first", "old", 200)
	second, secondKey := a.save(a.server("second"))
	overwrite(t, cert, second)
	overwrite(t, tokens, written(t, "tokens.yaml", lineOf("b", "new", "reed")))
	f.reload(f.log) // the key does not fit, and there is no such scope
	is("first", "old", 200)
	is("first", "new", 401)
	overwrite(t, key, secondKey)
	overwrite(t, tokens, written(t, "tokens.yaml", lineOf("b", "new", "read")))
	f.reload(f.log)
	is("second", "new", 200)
	is("second", "old", 401)
}

// SIGHUP makes a running server read its files again.
func TestHangup(t *testing.T) {
	tokens := written(t, "tokens.yaml", lineOf("a", "old", "read"))
	url, stop := started(t, "--data", t.TempDir(), "--token-file", tokens)
	status := func(token string) int {
		q, err := http.NewRequestWithContext(t.Context(), "GET", url+"/v1/stats", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+token)
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		return a.StatusCode
	}
	for status("old") == http.StatusServiceUnavailable { // it has just started
	}
	if n := status("new"); n != 401 {
		t.Errorf("a token that is not known is answered %d", n)
	}
	overwrite(t, tokens, written(t, "tokens.yaml", lineOf("b", "new", "read")))
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for status("new") != 200 {
	}
	if n := status("old"); n != 401 {
		t.Errorf("a token that was taken away is answered %d", n)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// A server without files to read again ignores the signal, which would otherwise end the process.
func TestHangupWithoutFiles(t *testing.T) {
	url, stop := started(t, "--data", t.TempDir())
	status := func() int {
		a, err := http.Get(url + "/v1/stats")
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		return a.StatusCode
	}
	for status() != 200 { // it has just started
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if n := status(); n != 200 {
		t.Errorf("answered %d", n)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// Every fault of the entrance is reported, and all of them at once.
func TestEntranceFaults(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.save(a.server("server"))
	missing := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		settings settings
		want     []string
	}{
		"half of a pair":  {settings{accessSettings: accessSettings{TLSCert: cert}}, []string{"tls-cert, tls-key: want both"}},
		"the other half":  {settings{accessSettings: accessSettings{TLSKey: key}}, []string{"tls-cert, tls-key: want both"}},
		"authority alone": {settings{accessSettings: accessSettings{TLSClientCA: a.file}}, []string{"tls-client-ca: want tls-cert"}},
		"swapped":         {settings{accessSettings: accessSettings{TLSCert: key, TLSKey: cert}}, []string{"tls-cert, tls-key: tls:"}},
		"another's key":   {settings{accessSettings: accessSettings{TLSCert: a.file, TLSKey: key}}, []string{"tls-cert, tls-key: tls: private key does not match"}},
		"no authority":    {settings{accessSettings: accessSettings{TLSCert: cert, TLSKey: key, TLSClientCA: key}}, []string{"tls-client-ca: " + key + " holds no certificate"}},
		"everything at once": {settings{accessSettings: accessSettings{TLSCert: missing, TLSKey: missing, TLSClientCA: missing, TokenFile: missing}},
			[]string{"tls-cert, tls-key: open", "tls-client-ca: open", "token-file: open"}},
	} {
		c.settings.MaxBody, c.settings.MaxConnections = 7, -1
		bad := &faults{}
		c.settings.entrance(bad)
		text := bad.err().Error()
		for _, part := range append(c.want, "max-body: must be from 1024 to 1073741824", "max-connections: must be from 1 to 1000000") {
			if !strings.Contains(text, "\n  "+part) {
				t.Errorf("%s: %q is not reported in %s", name, part, text)
			}
		}
	}
	// With tokens a server may listen beyond this machine.
	s := settings{accessSettings: accessSettings{TokenFile: "tokens.yaml"}}
	s.Listen, s.LogFormat, s.HandoverTimeout = "0.0.0.0:0", "text", time.Second
	bad := &faults{}
	if s.addresses(bad); bad.err() != nil {
		t.Error(bad.err())
	}
}

// A session of TLS does not outlive the certificates that it began with: resumed, it would go on
// showing the old one.
func TestReloadEndsSessions(t *testing.T) {
	for name, version := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			a := newAuthority(t)
			cert, key := a.save(a.server("first"))
			f := fixtureOf(t, settings{accessSettings: accessSettings{TLSCert: cert, TLSKey: key}})
			transport := a.client().Transport.(*http.Transport)
			transport.DisableKeepAlives, transport.ForceAttemptHTTP2 = true, false
			transport.TLSClientConfig.ClientSessionCache, transport.TLSClientConfig.MaxVersion = tls.NewLRUClientSessionCache(1), version
			resumed := func() (bool, string) {
				t.Helper()
				got, err := (&http.Client{Transport: transport}).Get(f.url + "/healthz")
				if err != nil {
					t.Fatal(err)
				}
				defer got.Body.Close()
				_, _ = io.Copy(io.Discard, got.Body)
				return got.TLS.DidResume, got.TLS.PeerCertificates[0].Subject.CommonName
			}
			resumed()
			if again, name := resumed(); !again || name != "first" {
				t.Fatalf("resumed: %t, with the certificate of %s", again, name)
			}
			second, secondKey := a.save(a.server("second"))
			overwrite(t, cert, second)
			overwrite(t, key, secondKey)
			f.reload(f.log)
			if again, name := resumed(); again || name != "second" {
				t.Errorf("after the reload, resumed: %t, with the certificate of %s", again, name)
			}
		})
	}
}
