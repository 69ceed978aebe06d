package client_test

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/client"
)

// What not all three clients have, which of them have it, and why.
var namesOfSome = map[string]struct{ in, why string }{
	"Client.Return":       {"Go", "a word of the other languages: GiveBack"},
	"Client.GiveBack":     {"TypeScript Python", "as Return"},
	"Client.FindTopics":   {"Go", "ListTopics of the others takes the query"},
	"Client.Past":         {"Go", "History of the others takes from and to"},
	"Client.Totals":       {"Go", "Stats of the others takes topics"},
	"Client.ActAll":       {"TypeScript Python", "in Go a loop that sets Cursor"},
	"Client.WithOptions":  {"Python", "in Go and TypeScript each call takes what it needs"},
	"Client.Close":        {"Go Python", "fetch keeps the connections of TypeScript"},
	"Client.Backup":       {"Go", "for operators: lapse backup"},
	"Client.GiveUpSpools": {"Go", "for operators: lapse nodes"},
	"Client.Export":       {"Go", "for operators: lapse export"},
	"Client.ExportPages":  {"Go", "for operators: lapse export"},
	"Client.Import":       {"Go", "for operators: lapse import"},
	"Client.ImportFrom":   {"Go", "for operators: lapse import"},
	"Topic.Name":          {"Go", "a field in the others"},
	"Worker.Topic":        {"Python", "a field in TypeScript"},
	"Worker.Stop":         {"TypeScript Python", "in Go the end of the context"},
}

// One thing has one name in the three clients, in the case of each language.
func TestTheClientsHaveTheSameNames(t *testing.T) {
	has := map[string][]string{} // by "Type.Method": the languages
	add := func(language, of, name string) {
		words := strings.Split(name, "_")
		for i, w := range words {
			words[i] = strings.ToUpper(w[:1]) + w[1:]
		}
		key := of + "." + strings.Join(words, "")
		has[key] = append(has[key], language)
	}
	for of, value := range map[string]reflect.Type{
		"Client": reflect.TypeFor[*client.Client](),
		"Topic":  reflect.TypeFor[client.Topic[int]](),
		"Worker": reflect.TypeFor[*client.Worker](),
	} {
		for m := range value.Methods() {
			add("Go", of, m.Name)
		}
	}
	for _, source := range []struct{ language, dir, class, method string }{
		{"TypeScript", "../clients/typescript/src/*.ts", `(?ms)^export class (Client|Topic|Worker)\b.*?^}`, `(?m)^  (?:async |get )?(\w+)\(`},
		{"Python", "../clients/python/lapse/*.py", `(?ms)^class (Client|Topic|Worker)\b.*?(?:^\S|\z)`, `(?m)^    def ([a-z]\w*)\(`},
	} {
		class, method := regexp.MustCompile(source.class), regexp.MustCompile(source.method)
		files, err := filepath.Glob(source.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range class.FindAllStringSubmatch(string(text), -1) {
				names := map[string]bool{}
				for _, m := range method.FindAllStringSubmatch(c[0], -1) {
					names[m[1]] = m[1] != "constructor"
				}
				for name, counts := range names { // an overload has its name several times
					if counts {
						add(source.language, c[1], name)
					}
				}
			}
		}
	}
	all := []string{"Go", "TypeScript", "Python"}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		wanted := all
		if some, ok := namesOfSome[name]; ok {
			wanted = strings.Fields(some.in)
		}
		if !slices.Equal(has[name], wanted) {
			t.Errorf("%s is in %v, not in %v %s", name, has[name], wanted, namesOfSome[name].why)
		}
	}
	for name := range namesOfSome {
		if has[name] == nil {
			t.Errorf("no client has %s", name)
		}
	}
	if len(has) < 60 {
		t.Errorf("only %d names were found", len(has))
	}
}
