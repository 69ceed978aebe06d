package httpapi

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// isRebinding reports whether a request names a host that is not this server. In DNS rebinding, the
// page of another site has a name that resolves to this server, so that the browser takes the
// server for the same origin. Tokens prevent that, since the browser sends none to such a name. TLS
// prevents it too, since the certificate is for another name. Without both, the name is compared
// with those that the server has.
func (a *access) isRebinding(r *http.Request) bool {
	if r.TLS != nil {
		return false
	}
	host := hostOf(r.Host)
	if host == "" || a.isAllowedHost(host) {
		return false // every browser sends the name
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	atLoopback := local != nil && local.IP.IsLoopback()
	if a.hosts == nil || a.callers != nil {
		// The program, or the tokens, decide which callers are let in. Browsers are checked all the
		// same.
		return atLoopback && isBrowser(r) && !isOfThisMachine(host)
	}
	return !isOfThisMachine(host) && net.ParseIP(host) == nil && (atLoopback || !isOfPrivateNetwork(host))
}

// hostOf returns the host of a Host header: in lower case, without port, brackets, and the dot
// of the root.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}

// isBrowser reports whether a request comes from a browser. Without TLS, a browser that reads from
// a same origin shows itself only by the language, which it always sends and no page can remove.
func isBrowser(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" || r.Header["Accept-Language"] != nil
}

// isOfThisMachine reports whether a name resolves to the client's own machine for every client, so
// that no DNS server can redirect it.
func isOfThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}

// isOfPrivateNetwork reports whether a name cannot be registered in the public DNS: it has no dot,
// like the name of a container, or is in a domain for use within a network, like the name of a
// Kubernetes service.
func isOfPrivateNetwork(host string) bool {
	return !strings.Contains(host, ".") || slices.ContainsFunc([]string{".local", ".internal", ".svc"}, func(domain string) bool {
		return strings.HasSuffix(host, domain)
	})
}

// isAllowedHost reports whether Config.AllowedHosts has a name.
func (a *access) isAllowedHost(host string) bool {
	for _, allowed := range a.hosts {
		domain, below := strings.CutPrefix(allowed, "*")
		if host == allowed || below && strings.HasSuffix(host, domain) {
			return true
		}
	}
	return false
}

// CheckHost returns what is wrong with an entry of Config.AllowedHosts, or "".
func CheckHost(host string) string {
	name, below := strings.CutPrefix(host, "*")
	if below && name == "" {
		return "" // every name
	}
	if below && !strings.HasPrefix(name, ".") || name == "" || strings.ContainsAny(name, "*:/ []@") && net.ParseIP(name) == nil {
		return "must be a name without a port, *.domain for all names below it, or * for every name"
	}
	return ""
}

// lowerCased returns names in lower case; nil stays nil.
func lowerCased(hosts []string) []string {
	hosts = slices.Clone(hosts)
	for i, h := range hosts {
		hosts[i] = strings.ToLower(h)
	}
	return hosts
}
