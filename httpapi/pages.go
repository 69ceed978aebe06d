package httpapi

import (
	"fmt"
	"html"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"
)

// pagePolicy is the content security policy of all pages: they load and call this server alone, and
// nothing that stands in the page itself runs.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// fillPage returns a page with its marks replaced. Each mark is followed by the HTML in its place.
// All URLs in pages are relative, so that a program can serve them below a prefix; up leads to the
// root from where the page is.
func fillPage(name, up string, marks ...string) []byte {
	marks = append(marks, "{{assets}}", up+"assets/"+pageAssets().build, "{{up}}", up)
	return []byte(strings.NewReplacer(marks...).Replace(pageFile(name)))
}

// writePage answers with a page.
func writePage(c *gin.Context, page []byte) {
	c.Header("Content-Security-Policy", pagePolicy)
	c.Header("Referrer-Policy", "no-referrer")
	c.Data(http.StatusOK, "text/html; charset=utf-8", page)
}

// dashboard answers GET /. The page asks the API for what it shows. It is the same for all callers,
// and also there while the server starts.
func dashboard(c *gin.Context) {
	c.Header("Cache-Control", "no-cache")
	writePage(c, dashboardPage())
}

// imported finds what a module needs from the beginning. What it imports by import("...") comes
// later.
var imported = regexp.MustCompile(`(?m)^import .* from "([^"]+)";$`)

// modules adds a module and all that it needs, by path below pages/assets.
func modules(name string, all map[string]bool) {
	if all[name] {
		return
	}
	all[name] = true
	for _, found := range imported.FindAllSubmatch(pageAssets().files[name].plain, -1) {
		modules(path.Join(path.Dir(name), string(found[1])), all)
	}
}

// dashboardPage names the modules that the page loads, so that a browser asks for all of them at
// once and not for each when it has read the one before.
var dashboardPage = sync.OnceValue(func() []byte {
	var m markup
	needed := make(map[string]bool)
	modules("app.js", needed)
	for _, name := range slices.Sorted(maps.Keys(needed)) {
		m.add("<link rel=\"modulepreload\" href=\"./assets/%s/%s\">\n", pageAssets().build, name)
	}
	return fillPage("dashboard.html", "./", "{{modules}}", m.String())
})

// explainProblem answers GET /problems/{name}, the page to which the type of a problem refers.
func explainProblem(c *gin.Context) {
	for _, k := range catalogue {
		if k.name == c.Param("name") {
			page := fillPage("problem.html", "../", "{{title}}", html.EscapeString(k.title), "{{type}}", html.EscapeString(answerOf(c).server.prefix.problemType(k.name)),
				"{{status}}", strconv.Itoa(k.status), "{{means}}", html.EscapeString(k.means), "{{remedy}}", html.EscapeString(k.remedy))
			writePage(c, page)
			return
		}
	}
	noRoute(c)
}

// markup is HTML that is being written.
type markup struct{ strings.Builder }

// add writes HTML. The texts, which are escaped, take the place of %s in it.
func (m *markup) add(format string, texts ...string) {
	escaped := make([]any, len(texts))
	for i, text := range texts {
		escaped[i] = html.EscapeString(text)
	}
	fmt.Fprintf(m, format, escaped...)
}
