package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"regexp"
	"strings"
	"testing"
)

// Each file that the dashboard names is there, under a name that changes with the files. What a
// browser has loaded it may keep for ever.
func TestAssets(t *testing.T) {
	r := newRig(t)
	page := r.do("GET", "/", "")
	links := regexp.MustCompile(`(?:src|href)="\./(assets/[^"]+)"`).FindAllSubmatch(page.body, -1)
	if len(links) < 10 {
		t.Fatalf("the page names %d files: %s", len(links), page.body)
	}
	sum, plain := len(page.body), ""
	for _, link := range links {
		path := "/" + string(link[1])
		a := r.do("GET", path, "", "Accept-Encoding: gzip")
		if a.status != 200 || a.header.Get("Content-Encoding") != "gzip" || a.header.Get("Cache-Control") != "public, max-age=31536000, immutable" ||
			a.header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s is answered %d %v", path, a.status, a.header)
		}
		sum += len(a.body)
		unpacked, err := gzip.NewReader(bytes.NewReader(a.body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(unpacked)
		if err != nil {
			t.Fatal(err)
		}
		if as := r.do("GET", path, "", "Accept-Encoding: gzip;q=0"); !bytes.Equal(as.body, text) || as.header.Get("Content-Encoding") != "" {
			t.Errorf("%s differs where gzip is not accepted: %v", path, as.header)
		}
		plain += string(text)
	}
	if sum > 100<<10 {
		t.Errorf("the page and what it loads have %d bytes", sum)
	}
	for _, module := range regexp.MustCompile(`from "([^"]+)"`).FindAllStringSubmatch(plain, -1) {
		if !strings.HasPrefix(module[1], "./") && !strings.HasPrefix(module[1], "../") {
			t.Errorf("a module imports %s", module[1])
		}
	}
	build := strings.Split(string(links[0][1]), "/")[1]
	other := r.do("GET", "/assets/000000000000/app.js", "")
	if own := r.do("GET", "/assets/"+build+"/app.js", ""); other.header.Get("Cache-Control") != "no-store" || !bytes.Equal(other.body, own.body) {
		t.Errorf("a file of another build is answered %d %v", other.status, other.header)
	}
	for _, path := range []string{"/none.js", "/", "/vendor/README.md", "/../dashboard.html", "/%2e%2e/dashboard.html"} {
		if a := r.do("GET", "/assets/"+build+path, ""); a.status != 404 {
			t.Errorf("%s is answered %d", path, a.status)
		}
	}
}

// What others have written is what pages/assets/vendor/README.md says it is.
func TestVendoredFiles(t *testing.T) {
	list := pageFile("assets/vendor/README.md")
	for name := range pageAssets().files {
		if name, vendored := strings.CutPrefix(name, "vendor/"); vendored {
			sum := sha256.Sum256([]byte(pageFile("assets/vendor/" + name)))
			if !regexp.MustCompile("(?m)^\\| `" + name + "` .*`" + hex.EncodeToString(sum[:]) + "` \\|$").MatchString(list) {
				t.Errorf("the README does not list %s with its digest %x", name, sum)
			}
		}
	}
}

// A browser loads little before the dashboard asks for figures: at most 100 kB, headers included,
// of the 110 kB that its first paint may take. A view that is imported later is not among it.
func TestFirstPaintIsSmall(t *testing.T) {
	page := string(dashboardPage())
	sum := len(packed([]byte(page)))
	named := regexp.MustCompile(`\./assets/\w+/([\w./-]+)`).FindAllStringSubmatch(page, -1)
	for _, name := range named {
		sum += len(pageAssets().files[name[1]].packed) + 300 // as browsers count headers
	}
	if sum > 100<<10 || len(named) < 20 || !strings.Contains(page, "/views/overview.js") {
		t.Errorf("%d files are named, and they have %d bytes", len(named), sum)
	}
	for _, view := range []string{"dead", "log", "search", "settings", "task", "topic", "wave"} {
		if strings.Contains(page, "/views/"+view+".js") {
			t.Errorf("the view %s is loaded with the page", view)
		}
	}
}
