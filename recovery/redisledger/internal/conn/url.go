package conn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// errURL ends every message about a URL that cannot be used.
var errURL = errors.New("accepted are redis://[user:password@]host[:port][/db], " +
	"redis+sentinel://[user:password@]host[:port],host/master[/db][?sentinel_user=&sentinel_password=] and " +
	"redis+cluster://[user:password@]host[:port],host, each also with rediss for TLS, where ?ca=FILE, cert=FILE " +
	"and key=FILE name PEM files; write special characters of a password as %XX")

// A mode is a way in which Redis is run.
type mode uint8

const (
	standalone mode = iota
	sentinel
	cluster
)

// An Address is a URL taken apart.
type Address struct {
	mode               mode
	hosts              []string // host:port
	master             string   // its name, as the sentinels know it
	DB                 int
	user, password     string
	sentinelUser       string
	sentinelPassword   string
	secure             bool
	ca, cert, keyInPEM string // names of files
}

// ParseURL reads a URL. The error names the accepted forms, and never repeats a password.
func ParseURL(s string) (Address, error) {
	a, err := splitURL(s)
	if err != nil {
		return a, fmt.Errorf("the URL of Redis: %w; %w", err, errURL)
	}
	return a, nil
}

// splitURL does it by hand: net/url has no lists of hosts.
func splitURL(s string) (a Address, err error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return a, errors.New("no scheme")
	}
	base, kind, _ := strings.Cut(scheme, "+")
	switch kind {
	case "":
	case "sentinel":
		a.mode = sentinel
	case "cluster":
		a.mode = cluster
	default:
		return a, fmt.Errorf("the scheme %s is not known", scheme)
	}
	if base != "redis" && base != "rediss" {
		return a, fmt.Errorf("the scheme %s is not known", scheme)
	}
	a.secure = base == "rediss"

	front, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(front, "/")
	named := strings.ContainsRune(authority, '@')
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, password, _ := strings.Cut(authority[:at], ":")
		if a.user, err = url.PathUnescape(user); err == nil {
			a.password, err = url.PathUnescape(password)
		}
		if err != nil {
			return a, errors.New("user and password cannot be read")
		}
		authority = authority[at+1:]
	}
	if err = a.setHosts(authority); err == nil {
		err = a.setPath(strings.Trim(path, "/"))
	}
	if err == nil {
		err = a.setQuery(query)
	}
	if err != nil && !named && strings.ContainsRune(rest, '@') {
		// What looks like a host may be half of a password, which no error repeats.
		err = errors.New("a / or ? stands in front of the @; in a password it is written %2F or %3F")
	}
	return a, err
}

func (a *Address) setHosts(list string) error {
	port := "6379"
	if a.mode == sentinel {
		port = "26379"
	}
	for h := range strings.SplitSeq(list, ",") {
		if h == "" {
			return errors.New("a host is missing")
		}
		host, p, err := net.SplitHostPort(h)
		if err != nil {
			host, p = strings.Trim(h, "[]"), port
			if strings.HasSuffix(h, ":") || strings.Contains(host, ":") && !strings.HasPrefix(h, "[") {
				return fmt.Errorf("the host %s cannot be read", h)
			}
		}
		_, notIP := netip.ParseAddr(host)
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 || host == "" || notIP != nil && strings.ContainsFunc(host, notInName) {
			return fmt.Errorf("the host %s cannot be read", h)
		}
		a.hosts = append(a.hosts, net.JoinHostPort(host, p))
	}
	if a.mode == standalone && len(a.hosts) > 1 {
		return errors.New("several hosts need redis+sentinel:// or redis+cluster://")
	}
	return nil
}

// notInName tells what no host's name contains. Names of services, as container
// systems have them, may contain underscores.
func notInName(r rune) bool {
	return !strings.ContainsRune("-._", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}

func (a *Address) setPath(path string) error {
	if a.mode == sentinel {
		master, db, _ := strings.Cut(path, "/")
		if a.master, path = master, db; master == "" {
			return errors.New("the name of the sentinels' master is missing")
		}
	}
	if path == "" {
		return nil
	}
	db, err := strconv.Atoi(path)
	switch {
	case err != nil || db < 0:
		return fmt.Errorf("/%s is not the number of a database", path)
	case a.mode == cluster && db != 0:
		return errors.New("a cluster has only database 0")
	}
	a.DB = db
	return nil
}

func (a *Address) setQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("what follows ? cannot be read")
	}
	for name, v := range values {
		switch {
		case name == "sentinel_user" && a.mode == sentinel:
			a.sentinelUser = v[0]
		case name == "sentinel_password" && a.mode == sentinel:
			a.sentinelPassword = v[0]
		case name == "ca" && a.secure:
			a.ca = v[0]
		case name == "cert" && a.secure:
			a.cert = v[0]
		case name == "key" && a.secure:
			a.keyInPEM = v[0]
		default:
			return fmt.Errorf("the parameter %s has no meaning here", name)
		}
	}
	if (a.cert == "") != (a.keyInPEM == "") {
		return errors.New("cert and key belong together")
	}
	return nil
}

// tls makes the settings for TLS; nil means none.
func (a *Address) tls() (*tls.Config, error) {
	if !a.secure {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.mode == standalone {
		c.ServerName, _, _ = net.SplitHostPort(a.hosts[0])
	}
	if a.ca != "" {
		pem, err := os.ReadFile(a.ca)
		if err != nil {
			return nil, fmt.Errorf("the authorities for TLS: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the authorities for TLS: no certificate in %s", a.ca)
		}
	}
	if a.cert != "" {
		pair, err := tls.LoadX509KeyPair(a.cert, a.keyInPEM)
		if err != nil {
			return nil, fmt.Errorf("the certificate for TLS: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// String is the URL without its secrets.
func (a Address) String() string {
	scheme := "redis"
	if a.secure {
		scheme = "rediss"
	}
	hosts := strings.Join(a.hosts, ",")
	switch a.mode {
	case sentinel:
		return fmt.Sprintf("%s+sentinel://%s/%s/%d", scheme, hosts, a.master, a.DB)
	case cluster:
		return fmt.Sprintf("%s+cluster://%s", scheme, hosts)
	}
	return fmt.Sprintf("%s://%s/%d", scheme, hosts, a.DB)
}
