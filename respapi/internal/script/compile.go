package script

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"
)

// chunkName is what errors call a script, as in Redis.
const chunkName = "user_script"

// The first variables of a script. No script can write the names of the first two, and so none can
// replace them.
const (
	concatName = "(concat)"
	slotName   = "(slot)"
	keysName   = "KEYS"
	argsName   = "ARGV"
)

// errNamelessTable is returned for an assignment such as f()[i] = x: the rewritten form would
// call f twice.
var errNamelessTable = errors.New("a table must have a name before one of its entries is assigned to")

// compile returns what runs. Error: what the compiler says of the text.
func compile(text string) (proto *lua.FunctionProto, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	if strings.HasPrefix(text, "#!") { // as Redis 7 has it; the line end keeps the numbers of lines
		_, rest, _ := strings.Cut(text, "\n")
		text = "\n" + rest
	}
	chunk, err := parse.Parse(strings.NewReader(text), chunkName)
	if err != nil {
		return nil, err
	}
	if err := rewrite(chunk); err != nil {
		return nil, err
	}
	first := &ast.LocalAssignStmt{
		Names: []string{concatName, slotName, keysName, argsName},
		Exprs: []ast.Expr{&ast.Comma3Expr{}},
	}
	return lua.Compile(append([]ast.Stmt{first}, chunk...), chunkName)
}

// rewrite changes what the statements do without counting:
//
//	a .. b    becomes  concat(a, b)
//	t[k] = v  becomes  t[slot(t, k)] = v
//	{[k] = v} becomes  {[slot(nil, k)] = v}
func rewrite(chunk []ast.Stmt) (err error) {
	w := rewriter{}
	w.walk(reflect.ValueOf(chunk))
	return w.err
}

type rewriter struct{ err error }

var exprType = reflect.TypeFor[ast.Expr]()

// walk rewrites all expressions in a value of package ast.
func (w *rewriter) walk(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			w.walk(v.Index(i))
		}
	case reflect.Interface:
		if v.IsNil() {
			return
		}
		w.walk(v.Elem())
		if v.Type() == exprType {
			if concat, ok := v.Interface().(*ast.StringConcatOpExpr); ok {
				v.Set(reflect.ValueOf(concatCall(concat)))
			}
		}
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		switch n := v.Interface().(type) {
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if to, ok := left.(*ast.AttrGetExpr); ok {
					w.guard(to.Object, &to.Key)
				}
			}
		case *ast.Field:
			if n.Key != nil {
				w.guard(nil, &n.Key)
			}
		}
		w.walk(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				w.walk(v.Field(i))
			}
		}
	}
}

// guard makes the key of an assignment one that is counted. A name, or a small number, is not.
func (w *rewriter) guard(table ast.Expr, key *ast.Expr) {
	switch k := (*key).(type) {
	case *ast.StringExpr:
		return
	case *ast.NumberExpr:
		if len(k.Value) == 1 {
			return
		}
	}
	if table == nil {
		table = &ast.NilExpr{}
	} else if calls(reflect.ValueOf(table)) {
		w.err = fmt.Errorf("line %d: %w", table.Line(), errNamelessTable)
		return
	}
	*key = callOf(slotName, (*key).Line(), table, *key)
}

// calls reports whether an expression has a call or a function.
func calls(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			if calls(v.Index(i)) {
				return true
			}
		}
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return false
		}
		switch v.Interface().(type) {
		case *ast.FuncCallExpr, *ast.FunctionExpr:
			return true
		}
		return calls(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && calls(v.Field(i)) {
				return true
			}
		}
	}
	return false
}

// concatCall returns the call for a .. b .. c, whose texts are put together at once.
func concatCall(e *ast.StringConcatOpExpr) *ast.FuncCallExpr {
	call := callOf(concatName, e.Line(), e.Lhs)
	right := e.Rhs
	// The right side was rewritten before. A call in brackets is not a part of this one.
	if more, ok := right.(*ast.FuncCallExpr); ok && isConcat(more) && len(more.Args) < mostConcatArgs {
		call.Args = append(call.Args, more.Args...)
		return call
	}
	call.Args = append(call.Args, right)
	// Of a call that returns several values, the first one counts.
	switch last := right.(type) {
	case *ast.FuncCallExpr:
		last.AdjustRet = true
	case *ast.Comma3Expr:
		last.AdjustRet = true
	}
	return call
}

// mostConcatArgs is less than what the interpreter can pass to a function.
const mostConcatArgs = 200

func isConcat(call *ast.FuncCallExpr) bool {
	name, ok := call.Func.(*ast.IdentExpr)
	return ok && name.Value == concatName
}

func callOf(function string, line int, args ...ast.Expr) *ast.FuncCallExpr {
	name := &ast.IdentExpr{Value: function}
	call := &ast.FuncCallExpr{Func: name, Args: args}
	for _, n := range []ast.PositionHolder{name, call} {
		n.SetLine(line)
		n.SetLastLine(line)
	}
	return call
}
