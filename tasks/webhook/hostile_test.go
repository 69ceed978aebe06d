package webhook

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A trap is a listener on all addresses of this machine that counts connections.
type trap struct {
	port  string
	count atomic.Int64
}

func newTrap(t *testing.T) *trap {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	trap := &trap{port: strconv.Itoa(l.Addr().(*net.TCPAddr).Port)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			trap.count.Add(1)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return trap
}

// hostile are URLs that lead, or might lead, to where a webhook must not go. PORT is that of a
// listener on every address of this machine.
var hostile = map[string]string{
	"loopback":                     "http://127.0.0.1:PORT/",
	"loopback, elsewhere":          "http://127.8.9.10:PORT/",
	"loopback by TLS":              "https://127.0.0.1:PORT/",
	"loopback, v6":                 "http://[::1]:PORT/",
	"loopback, v6 in full":         "http://[0:0:0:0:0:0:0:1]:PORT/",
	"v4-mapped":                    "http://[::ffff:127.0.0.1]:PORT/",
	"v4-mapped, hexadecimal":       "http://[::ffff:7f00:1]:PORT/",
	"v4-compatible":                "http://[::127.0.0.1]:PORT/",
	"NAT64":                        "http://[64:ff9b::7f00:1]:PORT/",
	"NAT64, local":                 "http://[64:ff9b:1::7f00:1]:PORT/",
	"6to4":                         "http://[2002:7f00:1::]:PORT/",
	"Teredo":                       "http://[2001:0:7f00:1::]:PORT/",
	"unspecified":                  "http://0.0.0.0:PORT/",
	"unspecified, v6":              "http://[::]:PORT/",
	"unspecified, mapped":          "http://[::ffff:0.0.0.0]:PORT/",
	"this network":                 "http://0.1.2.3:PORT/",
	"decimal":                      "http://2130706433:PORT/",
	"octal":                        "http://0177.0.0.1:PORT/",
	"octal, long":                  "http://00000177.0.0.01:PORT/",
	"octal, one number":            "http://017700000001:PORT/",
	"hexadecimal":                  "http://0x7f.0.0.1:PORT/",
	"hexadecimal, one number":      "http://0x7f000001:PORT/",
	"hexadecimal, capital":         "http://0X7F.1:PORT/",
	"short":                        "http://127.1:PORT/",
	"shortest":                     "http://0:PORT/",
	"trailing dot":                 "http://127.0.0.1.:PORT/",
	"full-width digits":            "http://１２７.０.０.１:PORT/",
	"ideographic full stop":        "http://127。0。0。1:PORT/",
	"circled letters":              "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:PORT/",
	"percent-encoded host":         "http://%31%32%37.0.0.1:PORT/",
	"percent-encoded, not ASCII":   "http://%ef%bc%91.example:PORT/",
	"zone":                         "http://[fe80::1%25lo]:PORT/",
	"zone on loopback":             "http://[::1%25lo]:PORT/",
	"localhost":                    "http://localhost:PORT/",
	"localhost, trailing dot":      "http://localhost.:PORT/",
	"localhost, capitals":          "http://LocalHost:PORT/",
	"under localhost":              "http://a.localhost:PORT/",
	"name of loopback":             "http://loopback.test:PORT/",
	"name of loopback, v6":         "http://loopback6.test:PORT/",
	"name of a mapped address":     "http://mapped.test:PORT/",
	"name of a private one":        "http://private.test:PORT/",
	"name of metadata":             "http://metadata.test/latest/meta-data/",
	"name of several":              "http://several.test:PORT/",
	"name that looks like one":     "http://127.0.0.1.test:PORT/",
	"private, 10":                  "http://10.0.0.1:PORT/",
	"private, 172.16":              "http://172.16.0.1:PORT/",
	"private, 172.31":              "http://172.31.255.254:PORT/",
	"private, 192.168":             "http://192.168.0.1:PORT/",
	"private, v6":                  "http://[fd12:3456::1]:PORT/",
	"carrier-grade NAT":            "http://100.64.0.1:PORT/",
	"carrier-grade NAT, end":       "http://100.127.255.254:PORT/",
	"link-local":                   "http://169.254.1.1:PORT/",
	"link-local, v6":               "http://[fe80::1]:PORT/",
	"site-local, v6":               "http://[fec0::1]:PORT/",
	"metadata":                     "http://169.254.169.254/latest/meta-data/",
	"metadata, v6":                 "http://[fd00:ec2::254]/latest/meta-data/",
	"metadata, Oracle, v6":         "http://[fd00:c1::a9fe:a9fe]/latest/",
	"metadata, Scaleway, v6":       "http://[fd00:42::42]/conf",
	"metadata, mapped":             "http://[::ffff:169.254.169.254]/latest/meta-data/",
	"metadata, decimal":            "http://2852039166/latest/meta-data/",
	"metadata of containers":       "http://169.254.170.2/v2/credentials",
	"metadata, public address":     "http://168.63.129.16/machine",
	"metadata behind NAT":          "http://100.100.100.200/latest/meta-data/",
	"metadata, protocol block":     "http://192.0.0.192/latest/",
	"multicast":                    "http://224.0.0.1:PORT/",
	"multicast, v6":                "http://[ff02::1]:PORT/",
	"broadcast":                    "http://255.255.255.255:PORT/",
	"reserved":                     "http://240.0.0.1:PORT/",
	"documentation":                "http://192.0.2.1:PORT/",
	"documentation, v6":            "http://[2001:db8::1]:PORT/",
	"benchmarks":                   "http://198.18.0.1:PORT/",
	"userinfo":                     "http://user:password@shop.example:PORT/",
	"userinfo that looks like one": "http://shop.example@127.0.0.1:PORT/",
	"user without password":        "http://@127.0.0.1:PORT/",
	"backslash":                    "http://shop.example\\@127.0.0.1:PORT/",
	"fragment":                     "http://127.0.0.1:PORT/#a",
	"empty fragment":               "http://shop.example:PORT/#",
	"line feed":                    "http://127.0.0.1:PORT/\r\nX: y",
	"space in host":                "http://127.0.0.1 .example:PORT/",
	"file":                         "file:///etc/passwd",
	"gopher":                       "gopher://127.0.0.1:PORT/_x",
	"ftp":                          "ftp://127.0.0.1:PORT/",
	"unix socket":                  "unix:///var/run/docker.sock",
	"unix socket by HTTP":          "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
	"unix socket as host":          "http://unix:/var/run/docker.sock",
	"dict":                         "dict://127.0.0.1:PORT/stat",
	"javascript":                   "javascript:alert(1)",
	"no scheme":                    "//127.0.0.1:PORT/",
	"no host":                      "http:///127.0.0.1:PORT/",
	"opaque":                       "http:127.0.0.1:PORT/",
	"port alone":                   "http://:PORT/",
	"port zero":                    "http://127.0.0.1:0/",
	"port too large":               "http://127.0.0.1:65536/",
	"empty port":                   "http://127.0.0.1:/",
}

// No hostile URL makes a connection, whether it is refused when the topic is set or when it
// is dialled.
func TestHostileURLs(t *testing.T) {
	trap := newTrap(t)
	n := newNames(t, map[string][]string{
		"loopback.test": {"127.0.0.1"}, "loopback6.test": {"::1"}, "mapped.test": {"::ffff:127.0.0.1"}, "private.test": {"10.0.0.1"},
		"metadata.test": {"169.254.169.254"}, "several.test": {"127.0.0.1", "::1", "10.0.0.1"}, "127.0.0.1.test": {"127.0.0.1"},
		"localhost": {"127.0.0.1", "::1"}, "a.localhost": {"127.0.0.1"},
	})
	all := make(map[string]string, len(hostile))
	for what, url := range hostile {
		all[what] = url
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		ip := a.(*net.IPNet).IP.String()
		all["own "+ip] = "http://" + net.JoinHostPort(ip, "PORT") + "/"
	}
	if len(all) < 40 {
		t.Fatalf("only %d URLs", len(all))
	}
	dialled := 0
	for what, url := range all {
		url = strings.ReplaceAll(url, "PORT", trap.port)
		w := newWay(t, Config{Resolver: n.resolver()})
		d, err := w.Deliverer("x", settingsOf(map[string]any{"url": url}))
		if err == nil {
			dialled++
		} else {
			var invalid *tasks.InvalidError
			if !errors.As(err, &invalid) || len(invalid.Fields) != 1 || invalid.Fields[0].Field != "url" {
				t.Errorf("%s: %v", what, err)
			}
			if text := err.Error(); strings.Contains(text, trap.port) || strings.Contains(text, "password@") {
				t.Errorf("%s: the error repeats the value: %v", what, err)
			}
			u := lenient(url)
			if u == nil {
				continue
			}
			// If it were accepted, it would come no further than this.
			d = newReceiver(w, "x", settings{url: u, timeout: defaultTimeout})
		}
		if err := d.Deliver(t.Context(), order("{}")); err == nil {
			t.Errorf("%s is delivered", what)
		}
		for outcome, n := range w.Tally() {
			// There is no such scheme, and no such port.
			refusedBefore := err != nil && (outcome == "broken" || outcome == "dial")
			if n > 0 && outcome != "refused_address" && outcome != "dns" && !refusedBefore {
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

// A name that was checked a moment ago may resolve to another address now.
func TestRebinding(t *testing.T) {
	trap := newTrap(t)
	n := newNames(t, map[string][]string{"shop.test": {"127.0.0.2"}})
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip("this machine has no 127.0.0.2:", err)
	}
	served := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close") // so that the next one is resolved anew
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = served.Serve(l) }()
	t.Cleanup(func() { served.Close(); <-done })

	w := newWay(t, Config{Allow: []string{"127.0.0.2"}, Resolver: n.resolver()})
	good := to(t, w, "http://shop.test:"+strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	if err := good.Deliver(t.Context(), order("{}")); err != nil {
		t.Fatal(err)
	}
	bad := to(t, w, "http://shop.test:"+trap.port)
	for _, addrs := range [][]string{{"127.0.0.1"}, {"::1"}, {"127.0.0.1", "10.0.0.1"}} {
		n.set("shop.test", addrs...)
		if err := bad.Deliver(t.Context(), order("{}")); !errors.Is(err, errRefused) {
			t.Errorf("%v: %v", addrs, err)
		}
	}
	// Of several, only what is allowed is dialled.
	n.set("shop.test", "127.0.0.1", "127.0.0.2")
	if err := good.Deliver(t.Context(), order("{}")); err != nil {
		t.Error(err)
	}
	if tally := w.Tally(); trap.count.Load() != 0 || tally["refused_address"] != 3 || tally["2xx"] != 2 {
		t.Errorf("%d connections, %v", trap.count.Load(), tally)
	}
}

// Redirects are failures, wherever they lead. No proxy is asked.
func TestRedirectsAndProxies(t *testing.T) {
	trap := newTrap(t)
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:"+trap.port)
	t.Setenv("ALL_PROXY", "http://127.0.0.1:"+trap.port)
	w := newWay(t, here)
	if w.connections.at(time.Now()).Proxy != nil {
		t.Error("a proxy is asked for")
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:"+trap.port+"/latest/meta-data")
			w.WriteHeader(status)
		})
		if err := to(t, w, s.URL).Deliver(t.Context(), order("{}")); err == nil || !strings.Contains(err.Error(), "not followed") {
			t.Errorf("%d: %v", status, err)
		}
	}
	if trap.count.Load() != 0 || w.Tally()["3xx"] != 5 {
		t.Errorf("%d connections, %v", trap.count.Load(), w.Tally())
	}
}

// A query is sent as it stands, so nothing in it may end the request line or be taken for
// the next word of it.
func TestQueryKeepsToItsPlace(t *testing.T) {
	for query, good := range map[string]bool{
		"shop=1&order=%20x%C3%BC~": true, "a HTTP/1.0": false, "a=\xff": false, "a=ü": false, "a=\u2028": false, "a=\t": false, "a=\x7f": false, " ": false,
	} {
		if _, problem := parseURL("http://shop.example/?" + query); (problem == "") != good {
			t.Errorf("%q: %s", query, problem)
		}
	}
}
