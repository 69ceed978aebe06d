package house

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

const (
	enginePath  = "github.com/lapsehq/lapse/tasks/internal/engine"
	clusterPath = "github.com/lapsehq/lapse/tasks/internal/cluster"
)

// A typed package has its product files and what each name in them means.
type typed struct {
	pkg   *types.Package
	uses  map[*ast.Ident]types.Object
	files []*ast.File
}

// A program is what is below tasks/, with types. Packages see one another by what the compiler has
// exported of them: the engine that others import is one object in all of them.
type program struct {
	positions *token.FileSet
	importer  types.Importer
	sources   map[string][]string // the files of each package of product code
}

// load has the go command say where the packages are. Those for tests alone are left out.
func load(t *testing.T) *program {
	t.Helper()
	list := exec.Command("go", "list", "-tags", "nomsgpack", "-export", "-deps",
		"-f", "{{.ImportPath}}\t{{.Export}}\t{{.Dir}}\t{{join .GoFiles \"\t\"}}", "./tasks/...")
	list.Dir, list.Stderr = rig.Root, os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal("go list:", err)
	}
	p := &program{positions: token.NewFileSet(), sources: map[string][]string{}}
	exported := map[string]string{}
	for line := range strings.Lines(string(out)) {
		of := strings.Split(strings.TrimSpace(line), "\t")
		exported[of[0]] = of[1]
		if path, ok := strings.CutPrefix(of[0], "github.com/lapsehq/lapse/tasks"); ok && !forTests(path) {
			for _, name := range of[3:] {
				p.sources[of[0]] = append(p.sources[of[0]], filepath.Join(of[2], name))
			}
		}
	}
	p.importer = importer.ForCompiler(p.positions, "gc", func(path string) (io.ReadCloser, error) {
		if exported[path] == "" {
			return nil, fmt.Errorf("the compiler has exported nothing of %s", path)
		}
		return os.Open(exported[path])
	})
	return p
}

// check reads a package and finds out what its names mean.
func (p *program) check(t *testing.T, path string) *typed {
	t.Helper()
	c := &typed{uses: map[*ast.Ident]types.Object{}}
	for _, name := range p.sources[path] {
		file, err := parser.ParseFile(p.positions, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		c.files = append(c.files, file)
	}
	var err error
	config := types.Config{Importer: p.importer}
	if c.pkg, err = config.Check(path, p.positions, c.files, &types.Info{Uses: c.uses}); err != nil {
		t.Fatal(err)
	}
	for name, o := range c.uses {
		c.uses[name] = declared(o)
	}
	return c
}

// declared returns the declaration behind an instance of something generic.
func declared(o types.Object) types.Object {
	switch o := o.(type) {
	case *types.Var:
		return o.Origin()
	case *types.Func:
		return o.Origin()
	}
	return o
}

// engine returns the package as others import it, and its Engine.
func (p *program) engine(t *testing.T) (*types.Package, *types.Named) {
	t.Helper()
	pkg, err := p.importer.Import(enginePath)
	if err != nil {
		t.Fatal(err)
	}
	named, ok := pkg.Scope().Lookup("Engine").Type().(*types.Named)
	if !ok {
		t.Fatal("Engine is no type of its own")
	}
	return pkg, named
}

// locks counts the calls outside of the engine that lock its mutex: Lock and TryLock of a mutex
// that is a field of Engine, and exported methods of Engine whose name begins with Lock or TryLock.
func (p *program) locks(t *testing.T) (n int) {
	_, engine := p.engine(t)
	fields := engine.Underlying().(*types.Struct)
	locks := func(name string) bool {
		return strings.HasPrefix(name, "Lock") || strings.HasPrefix(name, "TryLock")
	}
	for path := range p.sources {
		if path == enginePath {
			continue
		}
		c := p.check(t, path)
		for _, file := range c.files {
			ast.Inspect(file, func(node ast.Node) bool {
				call, ok := node.(*ast.SelectorExpr)
				if !ok || !locks(call.Sel.Name) {
					return true
				}
				method, ok := c.uses[call.Sel].(*types.Func)
				if !ok {
					return true
				}
				if mutex, ok := call.X.(*ast.SelectorExpr); ok && slices.ContainsFunc(slices.Collect(fields.Fields()), func(f *types.Var) bool {
					return c.uses[mutex.Sel] == f
				}) {
					n++
				} else if receiver := method.Signature().Recv(); receiver != nil && types.Identical(receiver.Type(), types.NewPointer(engine)) {
					n++
				}
				return true
			})
		}
	}
	return n
}

// engineNames counts what package cluster uses of package engine: types, functions, methods,
// fields, constants, variables, each once. Promoted methods and fields count as well.
func (p *program) engineNames(t *testing.T) int {
	engine, _ := p.engine(t)
	names := map[types.Object]bool{}
	for _, o := range p.check(t, clusterPath).uses {
		if o.Pkg() == engine {
			names[o] = true
		}
	}
	return len(names)
}

// unfolded counts the fields of Engine. A field that is a struct of the engine's package, or a
// pointer to one, counts as the fields of that struct.
func (p *program) unfolded(t *testing.T) int {
	pkg, engine := p.engine(t)
	seen := map[types.Type]bool{}
	var count func(of types.Type) int
	count = func(of types.Type) (n int) {
		seen[of] = true
		for f := range of.Underlying().(*types.Struct).Fields() {
			part := f.Type()
			if pointer, ok := part.(*types.Pointer); ok {
				part = pointer.Elem()
			}
			named, isNamed := part.(*types.Named)
			_, isStruct := part.Underlying().(*types.Struct)
			if isStruct && (!isNamed || named.Obj().Pkg() == pkg) && !seen[part] {
				n += count(part)
			} else {
				n++
			}
		}
		return n
	}
	return count(engine)
}

// methods counts the methods of *Engine, the promoted ones and the unexported ones among them.
func (p *program) methods(t *testing.T) int {
	_, engine := p.engine(t)
	return types.NewMethodSet(types.NewPointer(engine)).Len()
}
