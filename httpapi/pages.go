package httpapi

import (
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
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

// dashboardPage names the modules that the page loads, so that a browser asks for all of them at
// once and not for each when it has read the one before.
var dashboardPage = sync.OnceValue(func() []byte {
	var m markup
	all := pageAssets()
	for _, name := range slices.Sorted(maps.Keys(all.files)) {
		if strings.HasSuffix(name, ".js") && name != "vendor/uplot.js" { // no module
			m.add("<link rel=\"modulepreload\" href=\"./assets/%s/%s\">\n", all.build, name)
		}
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

// renderDocs makes the page that lists the routes, from the OpenAPI document.
func renderDocs(document *huma.OpenAPI) []byte {
	var m markup
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		item := document.Paths[path]
		for _, op := range []*huma.Operation{item.Post, item.Get, item.Put, item.Patch, item.Delete} {
			if op != nil {
				m.operation(document.Components.Schemas, op)
			}
		}
	}
	return fillPage("docs.html", "./", "{{version}}", html.EscapeString(document.Info.Version), "{{routes}}", m.String())
}

// operation writes one operation of the page of routes.
func (m *markup) operation(schemas huma.Registry, op *huma.Operation) {
	m.add("<details>\n<summary><code><span class=\"verb\">%s</span> %s</code> <span class=\"soft\">%s</span></summary>\n",
		op.Method, op.Path, op.Summary)
	if op.Description != "" {
		m.add("<p>%s</p>\n", op.Description)
	}
	if len(op.Parameters) > 0 {
		m.add("<table><thead><tr><th>Parameter</th><th>In</th><th></th></tr></thead><tbody>\n")
		for _, p := range op.Parameters {
			m.add("<tr><td><code>%s</code></td><td>%s</td><td>%s</td></tr>\n", p.Name, p.In, p.Description)
		}
		m.add("</tbody></table>\n")
	}
	if op.RequestBody != nil {
		m.fields(schemas, op.RequestBody.Content[mediaJSON].Schema)
	}
	m.add("<table><thead><tr><th>Answer</th><th></th></tr></thead><tbody>\n")
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		m.add("<tr><td><code>%s</code></td><td>%s</td></tr>\n", status, op.Responses[status].Description)
	}
	m.add("</tbody></table>\n</details>\n")
}

// fields writes the fields of a body.
func (m *markup) fields(schemas huma.Registry, schema *huma.Schema) {
	if schema.Items != nil {
		schema = schema.Items
	}
	if schema.Ref != "" {
		schema = schemas.SchemaFromRef(schema.Ref)
	}
	if len(schema.Properties) == 0 {
		return
	}
	m.add("<table><thead><tr><th>Field</th><th>Type</th><th></th></tr></thead><tbody>\n")
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		p, required := schema.Properties[name], ""
		if slices.Contains(schema.Required, name) {
			required = ", required"
		}
		m.add("<tr><td><code>%s</code></td><td>%s%s</td><td>%s</td></tr>\n", name, docsType(p), required, docsAbout(p))
	}
	m.add("</tbody></table>\n")
}

func docsType(p *huma.Schema) string {
	switch {
	case len(p.OneOf) > 0:
		return "duration"
	case p.Ref != "":
		return "object"
	case p.Format != "":
		return p.Format
	case p.Items != nil:
		return p.Items.Type + " array"
	case p.Type == "":
		return "any JSON"
	}
	return p.Type
}

func docsAbout(p *huma.Schema) string {
	about := p.Description
	if p.Default != nil {
		text, _ := json.Marshal(p.Default) // the value came from JSON
		about = strings.TrimSpace(fmt.Sprintf("%s Default %s.", about, text))
	}
	return about
}
