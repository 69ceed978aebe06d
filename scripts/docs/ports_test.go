package docs

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// portUses is what the product uses a port for, and the texts that give or use one for that, with
// the ports as their groups.
var portUses = map[string]*regexp.Regexp{
	"Redis": regexp.MustCompile(`(?i)redis[_-]listen\S*[ =:]*\S*:(\d{4})\b|redis-cli [^|]*-p (\d{4})\b` +
		`|\b(?:redis|jedis|newclient)[.(&{](?:[^)]*\D)?(\d{4})\)|redis\.Options\{.*:(\d{4})"`),
	"health": regexp.MustCompile(`(?i)health[_-]listen\S*[ =:]*\S*:(\d{4})\b|name: health, \w+: (\d{4})\b|prometheus\.io/port: "(\d{4})"` +
		`|targets: \["[\d.]+:(\d{4})"(?:, "[\d.]+:(\d{4})")?|lapse", "health".*:(\d{4})"|health and metrics are served on \S*:(\d{4})\b|\w+: \{path: /\w+, port: (\d{4})\b`),
	"HTTP": regexp.MustCompile(`(?i)(?:^|[^-\w]|--|LAPSE_)listen[ =:` + "`|]" + `*(?:.*listen. \| .)?[\w.]*:(\d{4})\b|--server \S*:(\d{4})\b` +
		`|name: http, \w+: (\d{4})\b|lapse serves on \S*:(\d{4})\b|:(\d{4})/v1/`),
}

// ours is a number that may be a port of the product: those around 7480.
var ours = regexp.MustCompile(`[: "=(]74(?:79|[89]\d)\b`)

// released are what a user reads or runs as it stands, from the root.
func released(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md", "CHANGELOG.md"}
	for _, dir := range []string{"docs", "deploy", "scripts/systemd", "clients", "adapters", "examples"} {
		err := fs.WalkDir(os.DirFS(root), dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "node_modules") {
				return fs.SkipDir
			}
			switch filepath.Ext(path) {
			case ".md", ".yml", ".yaml", ".env", ".service":
				all = append(all, path)
			case "":
				if d.Name() == "Dockerfile" {
					all = append(all, path)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// usesOf returns the ports that a line uses, and for what.
func usesOf(line string) map[string][]string {
	uses := map[string][]string{}
	for use, pattern := range portUses {
		for _, match := range pattern.FindAllStringSubmatch(line, -1) {
			for _, port := range match[1:] {
				if port != "" && !slices.Contains(uses[port], use) {
					uses[port] = append(uses[port], use)
				}
			}
		}
	}
	return uses
}

// No two purposes share a port, wherever the product is described, packed or deployed: settings of
// two pages, or of a page and a package, can be used together. Further nodes on one machine have
// HTTP at the ports after that of the first.
func TestPorts(t *testing.T) {
	purposes := map[string]map[string]string{} // by port: where it has each purpose first
	numbers := map[string]string{}             // where a port of ours is first
	for _, path := range released(t) {
		for n, line := range strings.Split(readPage(t, path), "\n") {
			at := fmt.Sprintf("%s:%d", path, n+1)
			for port, uses := range usesOf(line) {
				if purposes[port] == nil {
					purposes[port] = map[string]string{}
				}
				for _, use := range uses {
					purposes[port][use] = at
				}
			}
			for _, port := range ours.FindAllString(line, -1) {
				numbers[port[1:]] = at
			}
		}
	}
	for port, uses := range purposes {
		if len(uses) > 1 {
			t.Errorf("port %s is used for %v", port, uses)
		}
	}
	for port, at := range numbers {
		if purposes[port] == nil {
			t.Errorf("%s: port %s is given no purpose", at, port)
		}
	}
	for port, use := range map[string]string{"7479": "Redis", "7480": "HTTP", "7490": "health"} {
		if got := slices.Collect(maps.Keys(purposes[port])); !slices.Equal(got, []string{use}) {
			t.Errorf("port %s is used for %v, want %s", port, got, use)
		}
	}
	t.Logf("%v", purposes)
}

// TestPorts knows how a port is given in each kind of file.
func TestPortUses(t *testing.T) {
	for line, want := range map[string]string{
		"$ lapse serve --redis-listen 127.0.0.1:7490":                    "Redis",
		"redis_listen: 127.0.0.1:7490":                                   "Redis",
		"$ timeout 2 redis-cli -p 7490 SUBSCRIBE x":                      "Redis",
		"r = redis.Redis(port=7490)":                                     "Redis",
		`c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:7490"})`:   "Redis",
		`new Jedis("127.0.0.1", 7490)`:                                   "Redis",
		"const writer = new Redis(7490)":                                 "Redis",
		"Redis.new(port: 7490)":                                          "Redis",
		"ENV LAPSE_HEALTH_LISTEN=0.0.0.0:7490":                           "health",
		"args: [serve, --health-listen=0.0.0.0:7490]":                    "health",
		"- {name: health, containerPort: 7490}":                          "health",
		`prometheus.io/port: "7490"`:                                     "health",
		`static_configs: [{targets: ["10.0.0.1:7490"]}]`:                 "health",
		"httpGet: {path: /readyz, port: 7490}":                           "health",
		"LAPSE_LISTEN=127.0.0.1:7490":                                    "HTTP",
		"lapse serve --listen 0.0.0.0:7490":                              "HTTP",
		"lapse get order-45 --server http://127.0.0.1:7490":              "HTTP",
		"curl 127.0.0.1:7490/v1/tasks":                                   "HTTP",
		"| `--listen` | `LAPSE_LISTEN` | `listen` | `127.0.0.1:7490` | ": "HTTP",
	} {
		if got := usesOf(line)["7490"]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s: used for %v, want %s", line, got, want)
		}
	}
}
