package redisledger

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// writeCertificate writes a certificate for the loopback address, signed by
// itself, and its key, and returns their files.
func writeCertificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:        true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", signed), write("key.pem", "PRIVATE KEY", secret)
}

func TestTLS(t *testing.T) {
	cert, key := writeCertificate(t)
	secure := redistest.FreeAddr(t)
	_, port, _ := net.SplitHostPort(secure)
	server := redistest.Start(t)
	server.Do("config", "set", "tls-cert-file", cert, "tls-key-file", key, "tls-ca-cert-file", cert, "tls-port", port)

	v := oneShard("rediss://" + secure + "?ca=" + cert + "&cert=" + cert + "&key=" + key)
	l := v.open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	wantHeld(t, server.Client(), l, content{"a": "1"})
	for name, url := range map[string]string{
		"an unknown authority":   "rediss://" + secure + "?cert=" + cert + "&key=" + key,
		"no certificate of ours": "rediss://" + secure + "?ca=" + cert,
		"no TLS":                 "redis://" + secure,
	} {
		if _, err := oneShard(url).open(t).Adopt(t.Context()); err == nil {
			t.Errorf("with %s, Adopt succeeded", name)
		}
	}
	if _, err := Open(Options{URL: "rediss://h?ca=/absent.pem", Node: "n"}); err == nil || !strings.Contains(err.Error(), "absent.pem") {
		t.Errorf("Open with an absent file: %v", err)
	}
}
