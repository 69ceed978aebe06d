package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// No function unlocks a mutex that it has not locked itself, and a function whose name ends with
// Locked, which is called with a mutex held, does not wait.
func TestLockedStaysLocked(t *testing.T) {
	all, positions := sources(t)
	for i := range all {
		s := &all[i]
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			for _, fault := range lockFaults(f) {
				t.Errorf("%s: %s %s", positions.Position(fault.at), f.Name.Name, fault.what)
			}
		}
	}
}

// A lockFault is what a function does with a lock and should not.
type lockFault struct {
	at   token.Pos
	what string
}

// lockFaults returns the faults of one function. It judges by names: a mutex is what has Lock
// called on it, and a method whose name begins with lock returns with a mutex of its receiver held.
func lockFaults(f *ast.FuncDecl) (faults []lockFault) {
	add := func(n ast.Node, what string) { faults = append(faults, lockFault{n.Pos(), what}) }
	locked := strings.HasSuffix(f.Name.Name, "Locked")
	if locked {
		for _, p := range f.Type.Params.List {
			if types.ExprString(p.Type) == "context.Context" {
				add(p, "has a context: what it is for may wait")
			}
		}
	}
	own := map[string]bool{}     // mutexes that the function has locked
	lockers := map[string]bool{} // receivers of methods that return with a mutex held
	ready := map[ast.Node]bool{} // operations of a select that has a default
	var visit func(n ast.Node, later bool) bool
	visit = func(n ast.Node, later bool) bool {
		waits := locked && !later
		switch n := n.(type) {
		case *ast.FuncLit:
			ast.Inspect(n.Body, func(n ast.Node) bool { return visit(n, true) })
			return false
		case *ast.SelectStmt:
			for _, operation := range withoutWaiting(n) {
				ast.Inspect(operation, func(n ast.Node) bool { ready[n] = true; return true })
			}
		case *ast.UnaryExpr:
			if n.Op == token.ARROW && waits && !ready[n] {
				add(n, "receives from a channel")
			}
		case *ast.SendStmt:
			if waits && !ready[n] {
				add(n, "sends to a channel")
			}
		case *ast.CallExpr:
			method, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			// Engine has an unlock of its own.
			mutex := strings.TrimSuffix(types.ExprString(method.X), ".mu")
			receiver, _, _ := strings.Cut(mutex, ".")
			switch name := method.Sel.Name; {
			case name == "Lock", name == "TryLock", name == "RLock":
				own[mutex] = true
			case strings.HasPrefix(name, "lock"):
				lockers[receiver] = true
			case name == "Unlock", name == "unlock", name == "RUnlock":
				if !own[mutex] && !lockers[receiver] && !strings.EqualFold(f.Name.Name, name) {
					add(n, "unlocks what it has not locked")
				}
			case name == "Wait" && waits:
				add(n, "waits")
			}
		}
		return true
	}
	ast.Inspect(f.Body, func(n ast.Node) bool { return visit(n, false) })
	return faults
}

// withoutWaiting returns the operations of a select that has a default.
func withoutWaiting(s *ast.SelectStmt) (operations []ast.Stmt) {
	isDefault := func(c ast.Stmt) bool { return c.(*ast.CommClause).Comm == nil }
	if !slices.ContainsFunc(s.Body.List, isDefault) {
		return nil
	}
	for _, c := range s.Body.List {
		if !isDefault(c) {
			operations = append(operations, c.(*ast.CommClause).Comm)
		}
	}
	return operations
}

func TestLockFaults(t *testing.T) {
	for text, want := range map[string]string{
		"func (s *T) get() { s.mu.Lock(); defer s.mu.Unlock() }":                                 "",
		"func (s *T) get() { s.mu.Lock(); s.unlock() }":                                          "",
		"func (s *T) get() { if !s.mu.TryLock() { return }; s.mu.Unlock() }":                     "",
		"func (s *T) get() { s.lockTask(); s.f.mu.Unlock() }":                                    "",
		"func (s *T) get() func() { s.mu.Lock(); return func() { s.mu.Unlock() } }":              "",
		"func (s *T) unlock() { s.mu.Unlock() }":                                                 "",
		"func (s *T) submit() { s.unlock() }":                                                    "unlocks what it has not locked",
		"func (s *T) submit() { s.mu.Lock(); s.b.Unlock() }":                                     "unlocks what it has not locked",
		"func (s *T) submit() { s.a.Lock(); s.b.Unlock() }":                                      "unlocks what it has not locked",
		"func (s *T) getLocked() { s.mu.Unlock(); s.mu.Lock() }":                                 "unlocks what it has not locked",
		"func (s *T) getLocked(ctx context.Context) {}":                                          "has a context: what it is for may wait",
		"func (s *T) getLocked() { <-s.c }":                                                      "receives from a channel",
		"func (s *T) getLocked() { select { case <-s.c: case <-s.d: } }":                         "receives from a channel",
		"func (s *T) getLocked() { select { case <-s.c: case s.d <- 1: default: } }":             "",
		"func (s *T) getLocked() { select { case <-s.c: <-s.d; default: } }":                     "receives from a channel",
		"func (s *T) getLocked() { s.c <- 1 }":                                                   "sends to a channel",
		"func (s *T) getLocked() { s.group.Wait() }":                                             "waits",
		"func (s *T) getLocked() { go func() { s.group.Wait(); <-s.c }() }":                      "",
		"func (s *T) getLocked() { go func() { s.mu.Unlock() }() }":                              "unlocks what it has not locked",
		"func (s *T) get(ctx context.Context) { s.mu.Lock(); s.mu.Unlock(); <-s.c; s.x.Wait() }": "",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if faults := lockFaults(file.Decls[0].(*ast.FuncDecl)); len(faults) > 0 {
			got = faults[0].what
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
