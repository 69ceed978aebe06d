package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// A source is a file in which faults are planted.
type source struct {
	text string
	set  *token.FileSet
	file *ast.File
}

func read(name string, text []byte) (*source, error) {
	s := &source{text: string(text), set: token.NewFileSet()}
	var err error
	s.file, err = parser.ParseFile(s.set, name, text, parser.SkipObjectResolution)
	return s, err
}

func (s *source) at(p token.Pos) int { return s.set.Position(p).Offset }

// functions returns the functions and methods of that name; all, if it is "".
func (s *source) functions(name string) (found []*ast.FuncDecl) {
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && (name == "" || f.Name.Name == name) {
			found = append(found, f)
		}
	}
	return found
}

// find returns where a mutant's piece begins, and the function that has it; nil if it is outside
// functions or in one that cannot be switched. It returns an error unless the piece is there once.
func (s *source) find(m *mutant) (at int, in *ast.FuncDecl, err error) {
	at = -1
	for from := 0; ; {
		i := strings.Index(s.text[from:], m.from)
		if i < 0 {
			break
		}
		here := from + i
		from = here + 1
		var of *ast.FuncDecl
		for _, f := range s.functions("") {
			if s.at(f.Pos()) <= here && here < s.at(f.End()) {
				of = f
			}
		}
		if m.inside != "" && (of == nil || of.Name.Name != m.inside) {
			continue
		}
		if at >= 0 {
			return 0, nil, fmt.Errorf("the piece is there twice: %q", m.from)
		}
		at, in = here, of
		if of != nil && (here < s.at(of.Body.Lbrace) || of.Name.Name == "init" || of.Name.Name == "main" || of.Name.Name == "_") {
			in = nil
		}
	}
	if at < 0 {
		return 0, nil, fmt.Errorf("the piece is not there: %q", m.from)
	}
	return at, in, nil
}

// planted returns the file with a fault in it.
func (s *source) planted(m *mutant) (string, error) {
	at, _, err := s.find(m)
	if err != nil {
		return "", err
	}
	return s.text[:at] + m.to + s.text[at+len(m.from):], nil
}

// An edit replaces a piece of a file.
type edit struct {
	from, to int
	text     string
}

// switched returns the file with all these faults in it, of which the variable lapseMutant chooses
// one. Each must be in a function.
func (s *source) switched(mutants []*mutant) (string, error) {
	byFunc := map[*ast.FuncDecl][]*mutant{}
	var copies bytes.Buffer
	for _, m := range mutants {
		at, f, err := s.find(m)
		if err != nil {
			return "", err
		}
		byFunc[f] = append(byFunc[f], m)
		begin, name, end := s.at(f.Pos()), s.at(f.Name.Pos()), s.at(f.End())
		if f.Doc != nil {
			begin = s.at(f.Type.Func)
		}
		// Errors of the compiler name the fault in place of the file.
		fmt.Fprintf(&copies, "\n\n//line %s:1\n%s%s%s%s%s\n", m.mark(), s.text[begin:name], m.name(f),
			s.text[name+len(f.Name.Name):at], m.to, s.text[at+len(m.from):end])
	}
	var edits []edit
	for f, ms := range byFunc {
		edits = append(edits, s.dispatch(f, ms)...)
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(b.from, a.from) })
	text := s.text
	for _, e := range edits {
		text = text[:e.from] + e.text + text[e.to:]
	}
	return text + copies.String(), nil
}

func (m *mutant) mark() string { return fmt.Sprintf("mutant-%d", m.number) }
func (m *mutant) name(f *ast.FuncDecl) string {
	return fmt.Sprintf("%sMutant%d", f.Name.Name, m.number)
}

// dispatch returns the edits by which a function calls the copy of itself that is chosen.
func (s *source) dispatch(f *ast.FuncDecl, mutants []*mutant) (edits []edit) {
	unnamed := 0
	// names returns the names of some parameters. Those without one get one.
	names := func(fields *ast.FieldList) (all []string) {
		if fields == nil {
			return nil
		}
		for _, field := range fields.List {
			for _, n := range field.Names {
				name := n.Name
				if name == "_" {
					unnamed++
					name = fmt.Sprintf("mutantArg%d", unnamed)
					edits = append(edits, edit{s.at(n.Pos()), s.at(n.End()), name})
				}
				all = append(all, name)
			}
			if len(field.Names) == 0 {
				unnamed++
				all = append(all, fmt.Sprintf("mutantArg%d", unnamed))
				edits = append(edits, edit{s.at(field.Type.Pos()), s.at(field.Type.Pos()), all[len(all)-1] + " "})
			}
		}
		return all
	}
	on, args := names(f.Recv), names(f.Type.Params)
	if n := len(args); n > 0 {
		if _, variadic := f.Type.Params.List[len(f.Type.Params.List)-1].Type.(*ast.Ellipsis); variadic {
			args[n-1] += "..."
		}
	}
	prefix, types := "", ""
	if len(on) > 0 {
		prefix = on[0] + "."
	}
	if f.Type.TypeParams != nil {
		types = "[" + strings.Join(names(f.Type.TypeParams), ", ") + "]"
	}
	var b strings.Builder
	b.WriteString(" switch lapseMutant {")
	for _, m := range mutants {
		call := prefix + m.name(f) + types + "(" + strings.Join(args, ", ") + ")"
		if f.Type.Results != nil && len(f.Type.Results.List) > 0 {
			fmt.Fprintf(&b, " case %d: return %s;", m.number, call)
		} else {
			fmt.Fprintf(&b, " case %d: %s; return;", m.number, call)
		}
	}
	b.WriteString(" };")
	brace := s.at(f.Body.Lbrace) + 1
	return append(edits, edit{brace, brace, b.String()})
}

// switchFile is a file that is added to each package with faults.
func (s *source) switchFile() string {
	return "package " + s.file.Name.Name + "\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar lapseMutant, _ = strconv.Atoi(os.Getenv(\"LAPSE_MUTANT\"))\n"
}
