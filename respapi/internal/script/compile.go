package script

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"
)

// chunkName is what errors call a script, as in Redis.
const chunkName = "user_script"

// The first variables of a script. No script can write the names in brackets, and so none can
// replace them.
const (
	concatName = "(concat)"
	slotName   = "(slot)"
	manyName   = "(many)"
	numberName = "(number)"
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
		Names: []string{concatName, slotName, manyName, numberName, keysName, argsName},
		Exprs: []ast.Expr{&ast.Comma3Expr{}},
	}
	if proto, err = lua.Compile(append([]ast.Stmt{first}, chunk...), chunkName); err == nil {
		clip(proto)
	}
	return proto, err
}

// clip gives back the room that the compiler has left in a function and in those within it.
func clip(p *lua.FunctionProto) {
	p.Code = slices.Clone(p.Code)
	p.Constants = slices.Clone(p.Constants)
	p.FunctionPrototypes = slices.Clone(p.FunctionPrototypes)
	p.DbgSourcePositions = slices.Clone(p.DbgSourcePositions)
	p.DbgLocals = slices.Clone(p.DbgLocals)
	p.DbgCalls = slices.Clone(p.DbgCalls)
	p.DbgUpvalues = slices.Clone(p.DbgUpvalues)
	for _, inner := range p.FunctionPrototypes {
		clip(inner)
	}
}

// Bounds of a text, beside its length. The compiler takes time that grows with the square of the
// depth, and of the constants of a function.
const (
	deepestText   = 150  // expressions and statements within each other
	mostFunctions = 200  // in a script
	mostConstants = 2000 // numbers and texts in a script
)

var errTextLarge = errors.New("a script must have at most 200 functions, 2000 constants, and 150 expressions within each other")

// rewrite changes what the statements do without counting, or not as Lua does it:
//
//	a .. b    becomes  concat(a, b)
//	t[k] = v  becomes  t[slot(t, k)] = v
//	{[k] = v} becomes  {[slot(nil, k)] = v}
//	{f()}     becomes  {many(f())}
//	a + b     becomes  number(a) + number(b)
//
// Errors: errTextLarge; errNamelessTable.
func rewrite(chunk []ast.Stmt) (err error) {
	w := rewriter{}
	w.walk(reflect.ValueOf(chunk))
	return w.err
}

type rewriter struct {
	depth, functions, constants int
	err                         error
}

var exprType = reflect.TypeFor[ast.Expr]()

// walk rewrites all expressions in a value of package ast.
func (w *rewriter) walk(v reflect.Value) {
	if w.err != nil {
		return
	}
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
		if w.depth++; w.depth > deepestText {
			w.err = errTextLarge
		}
		w.node(v.Interface())
		w.walk(v.Elem())
		w.depth--
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				w.walk(v.Field(i))
			}
		}
	}
}

// node counts a node of the tree, and rewrites what it has before that is walked through.
func (w *rewriter) node(n any) {
	switch n := n.(type) {
	case *ast.FunctionExpr:
		w.functions++
	case *ast.NumberExpr, *ast.StringExpr:
		w.constants++
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
	case *ast.TableExpr:
		if last := len(n.Fields) - 1; last >= 0 && n.Fields[last].Key == nil {
			many(&n.Fields[last].Value)
		}
	case *ast.ArithmeticOpExpr:
		number(&n.Lhs)
		number(&n.Rhs)
	case *ast.UnaryMinusOpExpr:
		number(&n.Expr)
	case *ast.NumberForStmt:
		number(&n.Init)
		number(&n.Limit)
		if n.Step != nil {
			number(&n.Step)
		}
	}
	if w.functions > mostFunctions || w.constants > mostConstants {
		w.err = errTextLarge
	}
}

// many makes the last value of a table one that is counted, if it may stand for any number.
func many(e *ast.Expr) {
	switch v := (*e).(type) {
	case *ast.Comma3Expr:
		if v.AdjustRet {
			return
		}
	case *ast.FuncCallExpr:
		if v.AdjustRet {
			return
		}
	default:
		return
	}
	*e = callOf(manyName, (*e).Line(), *e)
}

// number makes an operand one that Lua's rules have made a number of, if it may be a text.
func number(e *ast.Expr) {
	switch (*e).(type) {
	case *ast.NumberExpr, *ast.ArithmeticOpExpr, *ast.UnaryMinusOpExpr, *ast.UnaryLenOpExpr:
		return
	}
	*e = callOf(numberName, (*e).Line(), *e)
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
