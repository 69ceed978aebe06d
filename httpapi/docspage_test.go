package httpapi

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/client"
)

// The examples of /docs name methods that the clients have, for operations that there are.
func TestDocsNameMethodsOfClients(t *testing.T) {
	document, _ := describedOperations(t)
	page := string(renderDocs(document))
	var sources []string
	for _, path := range []string{"../clients/typescript/src/client.ts", "../clients/python/lapse/_client.py"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, string(text))
	}
	table, _, _ := strings.Cut(pageFile("assets/snippets.js"), "};")
	rows := regexp.MustCompile(`"?([a-z-]+)"?: "(\w+) (\w+) (\w+)"`).FindAllStringSubmatch(table, -1)
	if len(rows) < 30 {
		t.Fatalf("%d operations have methods", len(rows))
	}
	for _, row := range rows {
		if !strings.Contains(page, `<details id="`+row[1]+`"`) {
			t.Errorf("there is no operation %s", row[1])
		}
		if _, has := reflect.TypeFor[*client.Client]().MethodByName(row[2]); !has {
			t.Errorf("%s: the client for Go has no %s", row[1], row[2])
		}
		for i, has := range []string{`(?m)^  (async )?\*?` + row[3] + `\(`, `(?m)^    def ` + row[4] + `\(`} {
			if !regexp.MustCompile(has).MatchString(sources[i]) {
				t.Errorf("%s: no client has %s", row[1], has)
			}
		}
	}
}

// Whatever takes something away is warned of on the page of the API before its form.
func TestDocsWarn(t *testing.T) {
	document, _ := describedOperations(t)
	page := string(renderDocs(document))
	harmless := []string{"logout"}
	for path, item := range document.Paths {
		if op := item.Delete; op != nil && docsWarnings[op.OperationID] == "" && !slices.Contains(harmless, op.OperationID) {
			t.Errorf("DELETE %s has no warning", path)
		}
	}
	for id, warning := range docsWarnings {
		_, of, found := strings.Cut(page, `<details id="`+id+`"`)
		of, _, _ = strings.Cut(of, "</details>")
		warns, asks := strings.Index(of, `<p class="warning">`), strings.Index(of, "<form")
		if !found || warns < 0 || asks < warns || !strings.Contains(of, strings.ReplaceAll(warning, `"`, "&#34;")) {
			t.Errorf("%s does not warn of %q before its form", id, warning)
		}
	}
}
