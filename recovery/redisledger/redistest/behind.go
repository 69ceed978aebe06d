package redistest

import (
	"bytes"
	"net"
	"testing"
)

// Behind makes a proxy in front of each of several servers that name each other, such as the
// masters of a cluster. In what passes, the proxies' names replace those of the servers, so that
// a client that begins with one proxy reaches every server by a proxy.
func Behind(t testing.TB, servers ...*Server) []*Proxy {
	t.Helper()
	proxies := make([]*Proxy, len(servers))
	var names []renaming
	for i, s := range servers {
		proxies[i] = NewProxy(t, s.Addr)
		host, from, _ := net.SplitHostPort(s.Addr)
		_, to, _ := net.SplitHostPort(proxies[i].Addr)
		if len(from) != len(to) {
			t.Fatalf("the ports %s and %s have different lengths", from, to)
		}
		// After the host's name, as a part of an address, the next word or the next number; as a
		// text of its own; and as the number of a port. Not any five digits: the tests' data in
		// Redis consists of numbers too.
		for _, frame := range [][2]string{{host + ":", ""}, {host + " ", ""}, {host + "\r\n:", ""}, {"port\r\n:", ""}, {"\r\n", "\r\n"}} {
			names = append(names, renaming{[]byte(frame[0] + from + frame[1]), []byte(frame[0] + to + frame[1])})
		}
	}
	for _, p := range proxies {
		p.mu.Lock()
		p.names = names
		p.mu.Unlock()
	}
	return proxies
}

// A renaming replaces the port of a server by that of its proxy.
type renaming struct{ from, to []byte }

func renamed(b []byte, names []renaming) []byte {
	for _, n := range names {
		if bytes.Contains(b, n.from) {
			b = bytes.ReplaceAll(b, n.from, n.to)
		}
	}
	return b
}

// Behind makes proxies in front of all servers, and an address that leads through them.
func (s *Sentinels) Behind() (url string, proxies []*Proxy) {
	s.Master.t.Helper()
	proxies = Behind(s.Master.t, s.sentinel, s.Master, s.Replica)
	return "redis+sentinel://" + proxies[0].Addr + "/" + MasterName, proxies
}

// Behind makes proxies in front of all masters, and an address that leads through them.
func (c *Cluster) Behind() (url string, proxies []*Proxy) {
	c.t.Helper()
	proxies = Behind(c.t, c.Masters...)
	url = "redis+cluster://"
	for i, p := range proxies {
		if i > 0 {
			url += ","
		}
		url += p.Addr
	}
	return url, proxies
}
