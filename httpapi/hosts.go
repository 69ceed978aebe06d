package httpapi

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// isRebinding reports whether a request names another host than this server: by DNS rebinding, a
// name that was made to lead here, a page of another site counts as the same origin to its
// browser. Tokens guard against that, since the browser sends none to such a name, and so does
// TLS, as the certificate is for another one. Without both, the name is compared with those that
// the server has.
func (s *Server) isRebinding(r *http.Request) bool {
	if r.TLS != nil {
		return false
	}
	host := hostOf(r.Host)
	if host == "" || s.isAllowedHost(host) {
		return false // no browser leaves the name out
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	atLoopback := local != nil && local.IP.IsLoopback()
	if s.hosts == nil || s.tokens.Load() != nil {
		// The program, or the tokens, say who may call: browsers are looked at all the same.
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

// isBrowser reports whether a request comes from a browser. Without TLS, one that reads from what
// it takes for the same origin shows itself only by the language, which it always sends and no
// page can take away.
func isBrowser(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" || r.Header["Accept-Language"] != nil
}

// isOfThisMachine reports whether a name leads every client to its own machine, so that no DNS
// server can make it lead elsewhere.
func isOfThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}

// isOfPrivateNetwork reports whether a name cannot be registered in the public DNS: it has no dot,
// as that of a container, or is in a domain for use within a network, as that of a service of
// Kubernetes.
func isOfPrivateNetwork(host string) bool {
	return !strings.Contains(host, ".") || slices.ContainsFunc([]string{".local", ".internal", ".svc"}, func(domain string) bool {
		return strings.HasSuffix(host, domain)
	})
}

// isAllowedHost reports whether Config.AllowedHosts has a name.
func (s *Server) isAllowedHost(host string) bool {
	for _, allowed := range s.hosts {
		domain, below := strings.CutPrefix(allowed, "*")
		if host == allowed || below && strings.HasSuffix(host, domain) {
			return true
		}
	}
	return false
}

// CheckHost returns what is wrong with an entry of Config.AllowedHosts, "" if nothing is.
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
