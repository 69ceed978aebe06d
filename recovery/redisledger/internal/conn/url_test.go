package conn

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestURL(t *testing.T) {
	for url, want := range map[string]Address{
		"redis://h":                  {hosts: []string{"h:6379"}},
		"redis://h/":                 {hosts: []string{"h:6379"}},
		"redis://:pw@h:7000/3":       {hosts: []string{"h:7000"}, password: "pw", DB: 3},
		"redis://u:p%40%2F%3A@h":     {hosts: []string{"h:6379"}, user: "u", password: "p@/:"},
		"redis://u:p@q@h":            {hosts: []string{"h:6379"}, user: "u", password: "p@q"},
		"redis://[::1]:7000":         {hosts: []string{"[::1]:7000"}},
		"redis://[::1]":              {hosts: []string{"[::1]:6379"}},
		"rediss://h?ca=/ca.pem":      {hosts: []string{"h:6379"}, secure: true, ca: "/ca.pem"},
		"redis+cluster://a,b:7000,c": {mode: cluster, hosts: []string{"a:6379", "b:7000", "c:6379"}},
		"rediss://h?ca=/a@b.pem":     {hosts: []string{"h:6379"}, secure: true, ca: "/a@b.pem"},
		"redis+sentinel://a,b:1/m":   {mode: sentinel, hosts: []string{"a:26379", "b:1"}, master: "m"},
		"rediss+sentinel://u:p@a/m/2?sentinel_user=s&sentinel_password=x": {
			mode: sentinel, hosts: []string{"a:26379"}, master: "m", DB: 2, user: "u", password: "p",
			sentinelUser: "s", sentinelPassword: "x", secure: true,
		},
	} {
		got, err := ParseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
		} else if diff := cmp.Diff(want, got, cmp.AllowUnexported(Address{})); diff != "" {
			t.Errorf("%s:\n%s", url, diff)
		}
	}
}

func TestBadURL(t *testing.T) {
	for url, part := range map[string]string{
		"":                             "no scheme",
		"localhost:6379":               "no scheme",
		"http://h":                     "scheme",
		"redis+proxy://h":              "scheme",
		"redis://":                     "host is missing",
		"redis://a,b":                  "several hosts",
		"redis+cluster://a,,b":         "host is missing",
		"redis://h:port":               "host",
		"redis://h:":                   "host",
		"redis://h:0":                  "host",
		"redis://::1":                  "host",
		"redis://h/db":                 "database",
		"redis://h/-1":                 "database",
		"redis+cluster://h/1":          "database 0",
		"redis+sentinel://h":           "master is missing",
		"redis://h?timeout=1":          "timeout",
		"redis://h?ca=x":               "ca",
		"rediss://h?cert=x":            "belong together",
		"redis://user:secret%zz@h":     "password cannot be read",
		"redis://user:secret@h:999999": "host",
		"redis://user:secret/x@h":      "%2F",
		"redis://user:secret?x@h":      "%2F or %3F",
		"redis://user:1/secret@h":      "%2F",

		"redis+sentinel://user:secret?x@h/m": "%3F",
	} {
		_, err := ParseURL(url)
		switch {
		case err == nil:
			t.Errorf("%s is accepted", url)
		case !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "redis+sentinel://"):
			t.Errorf("%s: %q does not name %q and the accepted forms", url, err, part)
		case strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: %q repeats the password", url, err)
		}
	}
}

// FuzzURL: an accepted URL has hosts, and its text has no secrets.
func FuzzURL(f *testing.F) {
	for _, seed := range []string{"redis://u:p@h:1/2", "redis+sentinel://a,b/m", "rediss+cluster://[::1]:2,b?ca=x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, url string) {
		a, err := ParseURL(url)
		if err != nil {
			return
		}
		a.user, a.password, a.sentinelUser, a.sentinelPassword = "", "", "", ""
		a.ca, a.cert, a.keyInPEM = "", "", ""
		again, err := ParseURL(a.String())
		if diff := cmp.Diff(a, again, cmp.AllowUnexported(Address{})); err != nil || diff != "" {
			t.Errorf("%q is written %q: %v\n%s", url, a.String(), err, diff)
		}
	})
}
