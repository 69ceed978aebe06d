package webhook

import (
	"net/http"
	"net/url"
	"testing"
	"time"
)

// FuzzURL checks that a URL which is taken names the same host once it is written and read again,
// and can be posted to.
func FuzzURL(f *testing.F) {
	for _, text := range []string{
		"https://shop.example/hooks?a=b", "http://[2001:db8::1]:80/", "http://127.1/", "http://a@b/", "http://a/#b", "http://a:0/", "http://a:/", "http://a%2eb/", "http://a\\b/", "http:/a", "http://a/%zz",
		"HTTP://A.example.", "http://[::1%25eth0]/", "http://a?b c", "http://a/b\r\nc",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, problem := parseURL(text)
		if problem != "" {
			return
		}
		again, err := url.Parse(u.String())
		if err != nil || again.Host != u.Host || again.Scheme != u.Scheme {
			t.Errorf("%q is %s, and that is %s: %v", text, u, again, err)
		}
		q, err := http.NewRequest(http.MethodPost, u.String(), http.NoBody)
		if err != nil || q.URL.Hostname() != u.Hostname() {
			t.Errorf("%q cannot be posted to: %v", text, err)
		}
	})
}

// FuzzRetryAfter checks that a receiver does not ask for a pause beyond the bounds.
func FuzzRetryAfter(f *testing.F) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, text := range []string{"", "0", "5", "86401", "99999999999999999999", "-1", "1.5", "Fri, 02 Jan 2026 03:05:05 GMT", "Fri, 02 Jan 9999 03:05:05 GMT", "Friday, 02-Jan-26 03:05:05 GMT", "Fri Jan  2 03:05:05 2026"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, header string) {
		if pause, ok := retryAfter(header, now); ok && (pause < minRetryAfter || pause > maxRetryAfter) {
			t.Errorf("%q asks for %s", header, pause)
		}
	})
}
