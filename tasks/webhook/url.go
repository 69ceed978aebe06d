package webhook

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

const (
	maxURL  = 2048
	maxHost = 253 // RFC 1035, section 2.3.4, as text
)

// parseURL reads the URL to post to. It returns what is wrong with it, or "".
//
// Hosts are plain: a name of ASCII letters, or an address in its usual form. The other forms that C
// libraries and browsers accept as addresses (127.1, 0x7f000001, 2130706433, full-width digits)
// have no honest use. Refusing them only helps the user: the check of the address that is dialled
// protects the network.
func parseURL(text string) (_ *url.URL, problem string) {
	if len(text) > maxURL {
		return nil, "must be at most 2048 bytes long"
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, "must be a URL such as https://shop.example/hooks/lapse"
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "must begin with http:// or https://"
	case u.User != nil:
		return nil, "must not hold a user or a password: topics are readable; check the signature instead"
	case u.Fragment != "" || strings.Contains(text, "#"):
		return nil, "must not have a fragment (#)"
	case strings.ContainsFunc(u.RawQuery, func(c rune) bool { return c <= ' ' || c > '~' }):
		// It would be sent unchanged, and the setting could end the request line at any place.
		return nil, "must have a query of printable ASCII without spaces, with %20 and the like for the rest"
	case u.Opaque != "" || u.Hostname() == "":
		return nil, "must have a host"
	case !validHost(u.Hostname()):
		return nil, "must have a host that is a name in ASCII (xn-- for others), or an address such as 192.0.2.1 or [2001:db8::1]"
	case !validPort(u):
		return nil, "must have a port from 1 to 65535, or none"
	}
	return u, ""
}

func validPort(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	return isPort(port)
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

func validHost(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Zone() == ""
	}
	name := strings.TrimSuffix(host, ".")
	if len(name) > maxHost {
		return false
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if !validLabel(label) {
			return false
		}
	}
	return !isNumber(labels[len(labels)-1])
}

func validLabel(label string) bool {
	if label == "" || len(label) > 63 {
		return false
	}
	for _, c := range []byte(label) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// isNumber reports whether a host with this last label is an address to a parser that follows the
// WHATWG URL standard, in decimal, octal or hexadecimal.
func isNumber(label string) bool {
	if hex, found := strings.CutPrefix(strings.ToLower(label), "0x"); found {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
