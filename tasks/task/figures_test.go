package task

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the generated types anew")

// figuresFile has the types of package httpapi that show figures. Their comments, the names and the
// order of their fields, and groups of figures in others are written there by hand.
const figuresFile = "../../httpapi/figures.go"

// examplesFile has examples of answers, in which no figure of a topic may be missing.
const examplesFile = "../../httpapi/examples.json"

const figuresHead = `// The fields and functions of this file follow the tags of tasks.Figures. They are written by
// go test ./tasks/task -run TestFiguresAreGenerated -update, which makes a new figure the last one
// of its group. Comments, the order of fields and new groups are written by hand.

package httpapi

import (
	"time"

	"github.com/lapsehq/lapse/tasks"
)

`

// A shownFigure is a figure as package httpapi shows it.
type shownFigure struct{ tag, typ, value string }

// shown finds the figures of a struct that package httpapi shows, by their path in the answer.
func shown(of reflect.Type, expr string) (paths []string, all map[string]shownFigure) {
	all = make(map[string]shownFigure)
	add := func(path, doc string, f reflect.StructField, expr string) {
		path, options, _ := strings.Cut(path, ",")
		s := shownFigure{typ: f.Type.Kind().String(), value: expr}
		tag := fmt.Sprintf("json:%q", strings.TrimSuffix(path[strings.LastIndex(path, ".")+1:]+","+options, ","))
		switch f.Type {
		case reflect.TypeFor[time.Time]():
			s.typ, s.value, tag = "string", "formatInstant("+expr+")", tag+` format:"date-time"`
		case reflect.TypeFor[time.Duration]():
			s.typ, s.value = "duration", "duration("+expr+".Round(time.Millisecond))"
		case reflect.TypeFor[Histogram]():
			s.typ, s.value = "Lateness", "wireLateness(&"+expr+")"
		case reflect.TypeFor[RecentLateness]():
			s.typ, s.value = "RecentLateness", "wireRecent(&"+expr+")"
		}
		if doc != "" {
			tag += fmt.Sprintf(" doc:%q", doc)
		}
		s.tag = tag
		paths, all[path] = append(paths, path), s
	}
	var walk func(t reflect.Type, expr string)
	walk = func(t reflect.Type, expr string) {
		for f := range t.Fields() {
			if doc, is := f.Tag.Lookup("attempt"); is {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				add("attempts."+name, doc, f, expr+"."+f.Name)
			}
			switch path := f.Tag.Get("http"); {
			case path != "":
				add(path, f.Tag.Get("doc"), f, expr+"."+f.Name)
			case f.Anonymous:
				walk(f.Type, expr)
			case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[Counts]():
				walk(f.Type, expr+"."+f.Name)
			}
		}
	}
	walk(of, expr)
	return paths, all
}

// The types of package httpapi that show figures follow the tags of the figures.
func TestFiguresAreGenerated(t *testing.T) {
	w := figuresWriter{types: map[string]*ast.StructType{}, docs: map[string]string{}, placed: map[string]bool{}}
	w.read(t, figuresFile)
	groups := w.read(t, "../../httpapi/stats.go")["Stats"]

	w.paths, w.shown = shown(reflect.TypeFor[Counts](), "c")
	counts := w.group("Counts", "", false)
	w.check(t)
	examples := w.examples(t)
	figures := ""
	w.paths, w.shown = shown(reflect.TypeFor[Figures](), "t")
	for _, f := range groups.Fields.List {
		if len(f.Names) == 0 || !w.has(f) || f.Names[0].Name == "Total" {
			continue
		}
		figures += fmt.Sprintf("w.%s = %s\n", f.Names[0].Name, w.group(f.Type.(*ast.Ident).Name, jsonName(f)+".", false))
	}
	w.check(t)
	fmt.Fprintf(&w, "// wireCounts shows the figures of a topic.\nfunc wireCounts(c *tasks.Counts) Counts {\nreturn %s\n}\n\n", counts)
	fmt.Fprintf(&w, "// wireFigures shows the figures of a node, or of several.\nfunc wireFigures(w *Stats, t *tasks.Figures) {\n%s}\n", figures)

	want, err := format.Source([]byte(figuresHead + w.String()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, &w)
	}
	for file, want := range map[string][]byte{figuresFile: want, examplesFile: examples} {
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not up to date: run this test with -update", file)
		}
	}
}

// examples returns the examples of the API, with each figure of a topic: a new one is 0, before the
// last one.
func (w *figuresWriter) examples(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(examplesFile)
	if err != nil {
		t.Fatal(err)
	}
	last := []byte(`"failed_recent": `)
	for _, path := range w.paths {
		name := []byte(`"` + path + `": `)
		if w.shown[path].typ == "int64" && !strings.Contains(path, ".") && bytes.Count(text, name) < bytes.Count(text, last) {
			text = bytes.ReplaceAll(text, last, slices.Concat(name, []byte("0, "), last))
		}
	}
	return text
}

// A figuresWriter writes the types of figuresFile anew.
type figuresWriter struct {
	bytes.Buffer
	types  map[string]*ast.StructType // those of figuresFile
	docs   map[string]string
	paths  []string
	shown  map[string]shownFigure
	placed map[string]bool // by path
}

// read returns the structs of a file. Those of figuresFile are kept with their comments.
func (w *figuresWriter) read(t *testing.T, name string) map[string]*ast.StructType {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*ast.StructType)
	for _, d := range file.Decls {
		decl, _ := d.(*ast.GenDecl)
		if decl == nil || decl.Tok != token.TYPE {
			continue
		}
		spec := decl.Specs[0].(*ast.TypeSpec)
		of, is := spec.Type.(*ast.StructType)
		if !is {
			continue
		}
		all[spec.Name.Name] = of
		if name == figuresFile {
			w.types[spec.Name.Name] = of
			for line := range strings.Lines(decl.Doc.Text()) {
				w.docs[spec.Name.Name] += "// " + line
			}
		}
	}
	return all
}

// check finds figures that no group has.
func (w *figuresWriter) check(t *testing.T) {
	t.Helper()
	for _, path := range w.paths {
		if !w.placed[path] {
			t.Errorf("%s has no group for the figure %s", figuresFile, path)
		}
	}
	clear(w.placed)
}

// has reports whether a field is a group of figures.
func (w *figuresWriter) has(f *ast.Field) bool {
	name, _ := f.Type.(*ast.Ident)
	return name != nil && w.types[name.Name] != nil
}

func jsonName(f *ast.Field) string {
	name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
	return name
}

// group writes a type with the figures whose paths begin with prefix, and then those within. It
// returns an expression with their values. An embedded type gets no new figures.
func (w *figuresWriter) group(name, prefix string, embedded bool) string {
	type field struct{ name, typ, tag, value string }
	var fields []field
	add := func(name, path string) {
		s := w.shown[path]
		fields, w.placed[path] = append(fields, field{name, s.typ, s.tag, s.value}), true
	}
	at := w.Len()
	for _, f := range w.types[name].Fields.List {
		if len(f.Names) == 0 {
			typ := f.Type.(*ast.Ident).Name
			fields = append(fields, field{name: typ, value: w.group(typ, prefix, true)})
			continue
		}
		path := prefix + jsonName(f)
		if _, is := w.shown[path]; is {
			add(f.Names[0].Name, path)
		} else if w.has(f) {
			typ := f.Type.(*ast.Ident).Name
			fields = append(fields, field{f.Names[0].Name, typ, strings.Trim(f.Tag.Value, "`"), w.group(typ, path+".", false)})
		}
	}
	for _, path := range w.paths {
		if own, is := strings.CutPrefix(path, prefix); is && !embedded && !w.placed[path] && !strings.Contains(own, ".") {
			words := ""
			for word := range strings.SplitSeq(own, "_") {
				words += strings.ToUpper(word[:1]) + word[1:]
			}
			add(words, path)
		}
	}
	within := bytes.Clone(w.Bytes()[at:])
	w.Truncate(at)
	fmt.Fprintf(w, "%stype %s struct {\n", w.docs[name], name)
	values, line := name+"{", ""
	for _, f := range fields {
		fmt.Fprintf(w, "\t%s %s", f.name, f.typ)
		if f.tag != "" {
			fmt.Fprintf(w, " `%s`", f.tag)
		}
		fmt.Fprintln(w)
		if len(line)+len(f.name)+len(f.value) > 150 {
			values, line = values+line+"\n", ""
		}
		line += f.name + ": " + f.value + ", "
	}
	fmt.Fprintf(w, "}\n\n%s", within)
	return values + line + "}"
}
