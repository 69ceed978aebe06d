//go:build browser

package browser

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/tasks"
)

//go:embed testdata/axe.min.js.gz
var axePacked []byte

const axeDigest = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"

func axe(t *testing.T) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(axePacked))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != axeDigest {
		t.Fatalf("axe-core has the digest %x", sum)
	}
	return string(text)
}

// theme has the page prefer light or dark.
func (p *tab) theme(name string) {
	p.Helper()
	p.do("make it "+name, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
		return err
	}))
}

// busy is a fleet on which there is something to see in each view: a topic that fails, one that is
// late, one that is paused, and one that does well.
func busy(t *testing.T) *rig {
	t.Helper()
	fleet := memfleet.New()
	r := serveOn(t, fleet.Join("n1", 4), tasks.Config{Node: "n1"}, httpapi.Config{})
	serveOn(t, fleet.Join("n2", 4), tasks.Config{Node: "n2"}, httpapi.Config{})
	r.breaks("invoice.send", "answered 500 Internal Server Error: no such template: invoice_v2")
	if err := r.Handle("order.unpaid", func(context.Context, *tasks.Delivery) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := r.Admin().PauseTopic(t.Context(), "newsletter", true); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		name := string(rune('a' + i))
		r.schedule("invoice.send", "invoice-"+name, 0)
		r.schedule("order.unpaid", "order-"+name, 0)
		r.schedule("order.unpaid", "order-later-"+name, time.Duration(i*i)*time.Minute)
		r.schedule("cart.reminder", "cart-"+name, 0)
		r.schedule("newsletter", "news-"+name, time.Hour)
	}
	return r
}

// Each view passes the tests of axe-core, in both themes and on a phone. With LAPSE_SCREENSHOTS, a
// folder, it leaves a picture of each there.
func TestAccessible(t *testing.T) {
	r := busy(t)
	p := open(t)
	script, folder := axe(t), os.Getenv("LAPSE_SCREENSHOTS")
	for _, look := range []struct {
		name, theme   string
		width, height int64
	}{{"desktop", "light", 1280, 800}, {"dark", "dark", 1280, 800}, {"phone", "light", 360, 740}} {
		p.do("resize", chromedp.EmulateViewport(look.width, look.height))
		p.theme(look.theme)
		for _, view := range []struct{ name, hash, shows, press string }{
			{"overview", "", "failing", ""},
			{"topics", "#/topics", "newsletter", ""},
			{"topic", "#/topics/cart.reminder", "cart-a", ""},
			{"settings", "#/topics/invoice.send", "Settings", "Edit settings"},
			{"tasks", "#/tasks", "cart-a", ""},
			{"task", "#/tasks/invoice-a", "Attempt 1 failed", ""},
			{"move", "#/tasks/order-later-l", "Attempt 1 begins", "Move"},
			{"dead", "#/dead", "12 dead", ""},
			{"dead-topic", "#/dead?topic=invoice.send", "invoice-a", ""},
			{"requeue", "#/dead?topic=invoice.send", "invoice-a", "Requeue all"},
			{"move-many", "#/tasks?topic=order.unpaid", "order-later-l", "Move all of these"},
			{"nodes", "#/nodes", "All 2 nodes are there.", ""},
			{"search", "#/search?q=order", "order-later-l", ""},
		} {
			p.load("about:blank")
			p.load(r.url + "/" + view.hash)
			p.shows("main", view.shows)
			if view.press != "" {
				p.press(view.press)
			}
			if view.name == "overview" {
				p.shows("main", "Nodes") // the last to come
			}
			eval[int](p, script+"; 0")
			if wrong := p.ask(`
				const r = await axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]});
				return r.violations.map(v => v.id + ": " + v.help + "\n" + v.nodes.slice(0, 3).map(n => "  " + n.html.slice(0, 200) + "\n  " + n.failureSummary).join("\n")).join("\n");`); wrong != "" {
				t.Errorf("%s, %s:\n%s", view.name, look.name, wrong)
			}
			if folder != "" {
				p.picture(filepath.Join(folder, view.name+"-"+look.name+".png"), chromedp.FullScreenshot(100))
			}
		}
	}
	p.content()
}

// picture keeps what the page shows.
func (p *tab) picture(path string, of chromedp.Action[[]byte]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	image, err := chromedp.Run(ctx, of)
	if err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(strings.ReplaceAll(path, " ", "-"), image, 0o644); err != nil {
		p.Fatal(err)
	}
}
