package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/resp"
)

// A shelf is a host with values in memory.
type shelf struct {
	values map[string]string
	most   int64 // bytes that it gives; 0: any number
	taken  int64
	lines  []string
}

var errNoRoom = errors.New("no room")

func (h *shelf) Log(text string) { h.lines = append(h.lines, text) }

func (h *shelf) Take(n int64) error {
	if h.taken += n; h.most > 0 && h.taken > h.most {
		return errNoRoom
	}
	return nil
}

func (h *shelf) Call(args [][]byte) []byte {
	w := resp.Writer{}
	key := ""
	if len(args) > 1 {
		key = string(args[1])
	}
	value, has := h.values[key]
	switch strings.ToLower(string(args[0])) {
	case "get":
		if !has {
			w.Null()
			break
		}
		w.Text(value)
	case "set":
		h.values[key] = string(args[2])
		w.OK()
	case "incr":
		n, _ := strconv.Atoi(value)
		h.values[key] = strconv.Itoa(n + 1)
		w.Int(int64(n + 1))
	case "echo":
		w.Bulk(args[1])
	case "mget":
		w.Array(len(args) - 1)
		for _, a := range args[1:] {
			if v, has := h.values[string(a)]; has {
				w.Text(v)
			} else {
				w.Null()
			}
		}
	default:
		w.Error("ERR unknown command")
	}
	return w.Buf
}

func newShelf() *shelf { return &shelf{values: map[string]string{"k": "v", "n": "41"}} }

// answerOf runs a script with the keys k and n and the arguments a and 7.
func answerOf(t testing.TB, text string, h *shelf) (string, error) {
	t.Helper()
	s, err := NewCache().Get(context.Background(), []byte(text))
	if err != nil {
		return "", err
	}
	var out resp.Writer
	err = s.Run(context.Background(), [][]byte{[]byte("k"), []byte("n")}, [][]byte{[]byte("a"), []byte("7")}, h, &out)
	return string(out.Buf), err
}

func TestScripts(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`return 1`, ":1\r\n"},
		{`return 3.99`, ":3\r\n"},
		{`return -3.99`, ":-3\r\n"},
		{`return 'x'`, "$1\r\nx\r\n"},
		{`return true`, ":1\r\n"},
		{`return false`, "$-1\r\n"},
		{`return nil`, "$-1\r\n"},
		{``, "$-1\r\n"},
		{`return {1, 'two', {3}, nil, 5}`, "*3\r\n:1\r\n$3\r\ntwo\r\n*1\r\n:3\r\n"},
		{`return {ok='FINE'}`, "+FINE\r\n"},
		{`return redis.status_reply('FINE')`, "+FINE\r\n"},
		{`return {err='NO way'}`, "-NO way\r\n"},
		{`return redis.error_reply('NO way')`, "-NO way\r\n"},
		{`return {KEYS[1], KEYS[2], ARGV[1], ARGV[2], #KEYS}`, "*5\r\n$1\r\nk\r\n$1\r\nn\r\n$1\r\na\r\n$1\r\n7\r\n:2\r\n"},
		{`return redis.call('get', KEYS[1])`, "$1\r\nv\r\n"},
		{`return redis.call('GET', 'none')`, "$-1\r\n"},
		{`if redis.call('get', 'none') == false then return 'none' end`, "$4\r\nnone\r\n"},
		{`return redis.call('incr', KEYS[2]) + ARGV[2]`, ":49\r\n"},
		{`return redis.call('set', 'x', 'y')`, "+OK\r\n"},
		{`return redis.call('set', 'x', 'y')['ok']`, "$2\r\nOK\r\n"},
		{`redis.call('set', 'x', 1.5) return redis.call('get', 'x')`, "$3\r\n1.5\r\n"},
		{`redis.call('set', 'x', 9007199254740993) return redis.call('get', 'x')`, "$16\r\n9007199254740992\r\n"},
		{`return redis.pcall('nothing')['err']`, "$19\r\nERR unknown command\r\n"},
		{`return redis.pcall('nothing')`, "-ERR unknown command\r\n"},
		{`local ok, e = pcall(redis.call, 'nothing') return {tostring(ok), e}`, "*2\r\n$5\r\nfalse\r\n$19\r\nERR unknown command\r\n"},
		{`return redis.call('mget', unpack(KEYS))`, "*2\r\n$1\r\nv\r\n$2\r\n41\r\n"},
		{`for i, v in ipairs(redis.call('mget', 'k', 'none')) do if not v then return i end end`, ":2\r\n"},
		{`return 'a' .. 1 .. 'b' .. 0.1 .. (2 .. 3)`, "$8\r\na1b0.123\r\n"},
		{`local function two() return 'x', 'y' end return 'a' .. two()`, "$2\r\nax\r\n"},
		{`local s = '' for i = 1, 3 do s = s .. i .. ',' end return s`, "$6\r\n1,2,3,\r\n"},
		{`local t = {} t[#t+1] = 'a' t[#t+1] = 'b' t.n = #t return {t[1], t[2], t.n}`, "*3\r\n$1\r\na\r\n$1\r\nb\r\n:2\r\n"},
		{`local t = {[1+0]='a', [KEYS[1]]='b', c='d'} return {t[1], t.k, t.c}`, "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nd\r\n"},
		{`local t = {{}} t[1][2+1] = 'x' return t[1][3]`, "$1\r\nx\r\n"},
		{`local i, t = 1, {} i, t[i] = 2, 'x' return {i, t[1]}`, "*2\r\n:2\r\n$1\r\nx\r\n"},
		{`local t = {3, 1, 2} table.sort(t) return table.concat(t, '-', 1, 3)`, "$5\r\n1-2-3\r\n"},
		{`local t = {1, 2} table.insert(t, 1, 0) table.insert(t, 3) table.remove(t) return t`, "*3\r\n:0\r\n:1\r\n:2\r\n"},
		{`return {tonumber('10'), tonumber('1e3'), tonumber(' 0x10 '), tonumber('ff', 16), tonumber('z', 36)}`, "*5\r\n:10\r\n:1000\r\n:16\r\n:255\r\n:35\r\n"},
		{`return {tostring(1e15), tostring(0.1+0.2), tostring(10), tostring(1/0), tostring(nil)}`, "*5\r\n$5\r\n1e+15\r\n$3\r\n0.3\r\n$2\r\n10\r\n$3\r\ninf\r\n$3\r\nnil\r\n"},
		{`return tonumber('x') == nil and tonumber('') == nil and tonumber('1_0') == nil`, ":1\r\n"},
		{`return string.format('%d|%5s|%-3d|%05.1f|%x|%%|%s', 3.7, 'ab', 4, 2.25, 255, true)`, "$27\r\n3|   ab|4  |002.2|ff|%|true\r\n"},
		{`return ('abc'):upper():sub(2, -1):rep(2)`, "$4\r\nBCBC\r\n"},
		{`return {string.find('a.c', '.', 1, true), string.find('abc', 'bc')}`, "*3\r\n:2\r\n:2\r\n:3\r\n"},
		{`return math.floor(7 / 2) + math.max(1, 2) + math.fmod(7, 4)`, ":8\r\n"},
		{`return redis.sha1hex('')`, "$40\r\nda39a3ee5e6b4b0d3255bfef95601890afd80709\r\n"},
		{`redis.replicate_commands() return server.call('get', 'k')`, "$1\r\nv\r\n"},
		{`return select('#', 1, 2, 3)`, ":3\r\n"},
		{`local n = 0 local function inc() n = n + 1 end pcall(function() inc() error('x') end) inc() return n`, ":2\r\n"},
		{`local n = 0 local function inc() n = n + 1 end pcall(function() pcall(error, 'x') inc() redis.call('nothing') end) inc() n = n + 10 inc() return n`, ":13\r\n"},
		{`local function f(...) local t = {...} return #t, ... end return {f(1, nil, 'x')}`, "*2\r\n:3\r\n:1\r\n"},
		{`return {'010' + 1, -'2', 2 ^ '3', math.floor('010'), 1 + ARGV[2]}`, "*5\r\n:11\r\n:-2\r\n:8\r\n:10\r\n:8\r\n"},
		{`local n = 0 for i = '1', '3' do n = n + i end return n`, ":6\r\n"},
		{`return pcall(function() return '1_000' + 1 end) == false`, ":1\r\n"},
		{`local t = {1, 2, 3} t[#t] = nil return {table.remove(t), #t, table.remove({}), table.remove(t, 5)}`, "*2\r\n:2\r\n:1\r\n"},
		{`local t = {3, 1, 2} t[3] = nil table.sort(t) table.sort(t, function(a, b) return a > b end) return t`, "*2\r\n:3\r\n:1\r\n"},
		{`local t = {} t[1e9] = 'a' t[100] = 'b' return {t[1e9], t[100], #t}`, "*3\r\n$1\r\na\r\n$1\r\nb\r\n:100\r\n"},
		{`local function f(n) if n == 0 then return 0 end return 1 + f(n - 1) end return f(180)`, ":180\r\n"},
		{`return {double = 3.5}`, "$3\r\n3.5\r\n"},
		{`return redis.error_reply('single')`, "-ERR single\r\n"},
		{`return string.format('%g|%g|%.3s|%-6s|%x|%f|%5.1f', 0.1 + 0.2, 123456789, 'abcdef', 'ü', -1, 1 / 0, 2)`, "$53\r\n0.3|1.23457e+08|abc|ü    |ffffffffffffffff|inf|  2.0\r\n"},
		{`return string.format('%q', 'a"b\\c\n\0')`, "$15\r\n\"a\\\"b\\\\c\\\n\\000\"\r\n"},
		{`return {tostring(math.huge), tostring(-math.huge), string.len(1e15), ('abc'):byte(-1), string.char(72, 105)}`, "*5\r\n$3\r\ninf\r\n$4\r\n-inf\r\n:5\r\n:99\r\n$2\r\nHi\r\n"},
		{`local _, e = pcall(error, {code = 7}) local ok, m = xpcall(function() error('x') end, function(m) return 'caught ' .. m end) return {e.code, ok, m}`, "*3\r\n:7\r\n$-1\r\n$23\r\ncaught user_script:1: x\r\n"},
		{`return {select(2, pcall(function() return 1, 2, 3 end))}`, "*3\r\n:1\r\n:2\r\n:3\r\n"},
		{"#!lua flags=no-writes\nreturn 1", ":1\r\n"},
		{`local n = 0 while true do n = n + 1 if n > 5 then break end end repeat n = n - 1 until n == 0 return n`, ":0\r\n"},
		{`local f = function(...) return select(2, ...) end return f(1, 'x')`, "$1\r\nx\r\n"},
	} {
		if got, err := answerOf(t, c.text, newShelf()); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

func TestScriptsThatFail(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`return redis.call('nothing')`, "ERR unknown command"},
		{`error('x')`, "ERR user_script:1: x script: "},
		{`error({err='MINE x'})`, "MINE x"},
		{`return nothing`, "ERR user_script:1: Script attempted to access nonexistent global variable 'nothing'"},
		{`nothing = 1`, "ERR user_script:1: Attempt to modify a readonly table"},
		{`string.rep = nil`, "ERR user_script:1: Attempt to modify a readonly table"},
		{`redis.call = nil`, "ERR user_script:1: Attempt to modify a readonly table"},
		{`return 'a' .. nil`, "ERR user_script:1: attempt to concatenate a nil value"},
		{"\nreturn {} .. 'a'", "ERR user_script:2: attempt to concatenate a table value"},
		{`redis.call()`, "ERR Please specify at least one argument"},
		{`redis.call('get', {})`, "ERR Lua redis lib command arguments must be strings or integers"},
		{`return string.gsub('a', 'a', 'b')`, "ERR user_script:1: string.gsub is not there"},
		{`return string.find('a', '.')`, "ERR user_script:1: string.find looks for texts"},
		{`local t t.x = 1`, "ERR user_script:1: attempt to index"},
		{`return string.format('%100d', 1)`, "ERR user_script:1: invalid format"},
		{`return string.format('%*d', 1, 1)`, "ERR user_script:1: invalid format"},
		{`return require('os')`, "ERR user_script:1: Script attempted to access nonexistent global variable 'require'"},
		{`return load('return 1')`, "ERR user_script:1: Script attempted to access nonexistent global variable 'load'"},
		{`table.insert(math, 'x')`, "ERR user_script:1: Attempt to modify a readonly table"},
		{`table.sort(table)`, "ERR user_script:1: Attempt to modify a readonly table"},
		{`assert(false, 'no')`, "ERR no script: "},
		{`local t = {} t[300000] = 1`, "ERR the script gives a table an entry far behind its end"},
		{`return _G.x`, "ERR user_script:1: Script attempted to access nonexistent global variable '_G'"},
	} {
		got, err := answerOf(t, c.text, newShelf())
		var failed *Error
		if !errors.As(err, &failed) || !strings.HasPrefix(failed.Answer, c.want) || got != "" {
			t.Errorf("%s: %q, %v; want %q", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{
		"local f return f" + strings.Repeat("+f", 32_000), "return " + strings.Repeat("- ", 32_000) + "1", "local t = {" + strings.Repeat("function()end,", 4000) + "}",
		`return (`, `f()[1+1] = 2`, `(function() end)[1+1] = 2`, `x = = 1`, strings.Repeat("(", 30_000), "return " + strings.Repeat("{", 60_000)} {
		if _, err := NewCache().Get(context.Background(), []byte(text)); err == nil {
			t.Errorf("%.20s is compiled", text)
		}
	}
}

// TestScriptsAreBounded runs scripts that would take any amount of steps, time or memory.
func TestScriptsAreBounded(t *testing.T) {
	for _, text := range []string{
		`while true do end`,
		`while true do pcall(function() while true do end end) end`,
		`local function f() return f() end return f()`,
		`local s = 'xxxxxxxxxxxxxxxx' while true do s = s .. s end`,
		`local s = 'xxxxxxxxxxxxxxxx' for i = 1, 60 do pcall(function() s = s .. s end) end return #s`,
		`return string.rep('x', 1e9)`,
		`return string.rep('x', 9e18)`,
		`return #string.rep('xxxx', 4611686018427387904)`,
		`local t = {} t[6e7] = 1`,
		`local t = {[6e7] = 1}`,
		`for i = 1, 1e5 do local t = {} t[60000] = 1 end`,
		`local t = {} for i = 1, 1e5 do t[i] = {} t[i][60000] = 1 end`,
		`local t = {string.rep('x', 1e6)} for i = 1, 10 do t[#t+1] = t[1] end return table.concat(t) .. table.concat(t)`,
		`local t = {'x'} for i = 1, 30 do t = {t, t} end return t`,
		`local t = {} t[1] = t return t`,
		`local t = {string.rep('x', 1e6)} for i = 1, 20 do t[#t+1] = t[1] end return t`,
		`for i = 1, 1e5 do redis.call('echo', string.rep('x', 1e5)) end`,
		`local f f = string.rep('%99d', 10000) return string.format(f, unpack({1,2,3}))`,
		`local t = {} for i = 1, 1e5 do t[i] = {x = i} end return #t`,
		`local t = {} for i = 1, 1e6 do t['k' .. i] = i end`,
		`local s = string.rep('x', 8e6) local keep = {} for i = 1, 3000 do local ok, e = pcall(function() error(s) end) keep[i] = e end`,
		`local s, keep = string.rep('x', 6e4), {} for i = 1, 1e5 do keep[i] = {string.byte(s, 1, 7000)} end`,
		`local t, keep = {}, {} for i = 1, 7000 do t[i] = i end for i = 1, 1e5 do keep[i] = {unpack(t)} end`,
		`local t = {} for i = 1, 7000 do t[i] = i end local function f(...) local keep = {} for i = 1, 1e5 do keep[i] = {...} end end f(unpack(t))`,
		`local t = {} for i = 1, 7000 do t[i] = 'k' end for i = 1, 1e5 do redis.call('mget', unpack(t)) end`,
		`local t = {} for i = 1, 6000 do t[i] = tostring(i) end for i = 1, 1e5 do table.sort(t) end`,
		`return ('x'):rep(1e7):upper():lower():reverse()`,
	} {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h := newShelf()
		h.most = 128 << 20
		got, err := answerOf(t, text, h)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: %.50q", text, got)
		}
		if made := int64(after.TotalAlloc - before.TotalAlloc); made > 4*(h.taken+4<<20) {
			t.Errorf("%s: made %d bytes, and counted %d", text, made, h.taken)
		}
	}
	for _, text := range []string{ // these have no bound of their own, but one of the interpreter
		`local function f() return 1 + f() end return f()`,
		`local function f() return pcall(f) end return tostring(f())`,
		`return unpack({}, 1, 1e9)`,
		`return unpack({}, -1e15, 0)`,
		`return string.byte(string.rep('x', 1e6), 1, -1)`,
		`local t = {} for i = 1, 5000 do t[i] = i end table.sort(t, function() return true end)`,
	} {
		if got, err := answerOf(t, text, newShelf()); len(got) > 1000 {
			t.Errorf("%s: %d bytes, %v", text, len(got), err)
		}
	}
}

// A slow is a host whose commands take a little more than a second.
type slow struct{ *shelf }

func (s slow) Call(args [][]byte) []byte {
	time.Sleep(time.Second + time.Millisecond)
	return s.shelf.Call(args)
}

// TestScriptsEndInTime ends scripts that take too long, and those whose client has gone.
func TestScriptsEndInTime(t *testing.T) {
	s, err := NewCache().Get(context.Background(), []byte("while true do pcall(redis.call, 'incr', 'n') end"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := slow{newShelf()}
		if err := s.Run(t.Context(), nil, nil, h, new(resp.Writer)); !errors.Is(err, ErrBound) {
			t.Error(err)
		}
		if n := h.values["n"]; n != "46" { // 41 and five seconds
			t.Errorf("it has got to %s", n)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Run(ctx, nil, nil, newShelf(), new(resp.Writer)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestScriptWithoutRoom ends a script for which the host has no memory, whatever it catches.
func TestScriptWithoutRoom(t *testing.T) {
	h := newShelf()
	h.most = 1 << 20
	_, err := answerOf(t, `local t = {} for i = 1, 30 do pcall(function() t[i] = string.rep('x', 1e5) end) end return 1`, h)
	if !errors.Is(err, errNoRoom) {
		t.Error(err)
	}
}

// TestScriptsLeaveNothing looks in a script for what another one has left.
func TestScriptsLeaveNothing(t *testing.T) {
	c := NewCache()
	run := func(text string) string {
		s, err := c.Get(context.Background(), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var out resp.Writer
		_ = s.Run(context.Background(), [][]byte{[]byte("secret")}, nil, newShelf(), &out)
		return string(out.Buf)
	}
	for range 100 {
		run(`local m = string m.leak = KEYS[1] return 1`)
		run(`pcall(function() leak = KEYS[1] end) return 1`)
		run(`local s = '' s.leak = KEYS[1]`)
		run(`redis.leak = KEYS[1] error(KEYS[1])`)
		run(`table.leak = 1 return unpack({KEYS[1], KEYS[1]})`)
		for _, look := range []string{`return string.leak`, `return leak`, `return ('').leak`, `return redis.leak`, `local x return x`, `return ...`} {
			if got := run(look); strings.Contains(got, "secret") {
				t.Fatalf("%s: %q", look, got)
			}
		}
	}
}

func TestScriptsTogether(t *testing.T) {
	c := NewCache()
	var group sync.WaitGroup
	for n := range 8 {
		group.Go(func() {
			for i := range 300 {
				s, err := c.Get(context.Background(), fmt.Appendf(nil, "local t = {} for i = 1, 50 do t[i] = KEYS[1] .. i end return t[50] .. %d", i%7))
				if err != nil {
					t.Error(err)
					return
				}
				var out resp.Writer
				if err := s.Run(context.Background(), [][]byte{fmt.Appendf(nil, "g%d-", n)}, nil, newShelf(), &out); err != nil {
					t.Error(err)
				}
				if want := fmt.Sprintf("$6\r\ng%d-50%d\r\n", n, i%7); string(out.Buf) != want {
					t.Errorf("%q, want %q", out.Buf, want)
				}
			}
		})
	}
	group.Wait()
}

func TestCacheIsBounded(t *testing.T) {
	c := NewCache()
	first, err := c.Get(context.Background(), []byte("return 1"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Find([]byte(strings.ToUpper(first.Digest))) != first {
		t.Error("the digest in capitals finds nothing")
	}
	for i := range 2 * mostCached {
		if _, err := c.Get(context.Background(), fmt.Appendf(nil, "return %d", i+2)); err != nil {
			t.Fatal(err)
		}
	}
	if c.Len() != mostCached || c.Find([]byte(first.Digest)) != nil {
		t.Errorf("%d scripts are kept", c.Len())
	}
	pad := bytes.Repeat([]byte(" "), MaxText-20)
	for i := range 100 {
		if _, err := c.Get(context.Background(), fmt.Appendf(nil, "return %d%s", i, pad)); err != nil {
			t.Fatal(err)
		}
	}
	if c.bytes > mostKept {
		t.Errorf("scripts of %d bytes are kept", c.bytes)
	}
	if _, err := c.Get(context.Background(), bytes.Repeat([]byte(" "), MaxText+1)); err == nil {
		t.Error("a script of any length is compiled")
	}
	if c.Forget(); c.Len() != 0 || c.bytes != 0 {
		t.Error("scripts are left")
	}
}

func FuzzScript(f *testing.F) {
	for _, text := range []string{
		`local s = 'x' for i = 1, 10 do s = s .. s end return {s, #s, KEYS[1] .. ARGV[1]}`,
		`local t = {[1]=2, a={b=1}} t[#t+1] = string.format('%5.2f', 1/3) return t`,
		`return redis.pcall('get', unpack(KEYS))`,
		`local function f(n) if n == 0 then return 1 end return n * f(n-1) end return f(5)`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h := newShelf()
		got, err := answerOf(t, text, h)
		if err != nil && got != "" {
			t.Errorf("%q beside %v", got, err)
		}
		if len(got) > 20<<20 {
			t.Errorf("%d bytes", len(got))
		}
	})
}

func BenchmarkScript(b *testing.B) {
	for name, text := range map[string]string{
		"lock":    `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('set', KEYS[1], '') else return 0 end`,
		"limiter": `local n = redis.call('incr', KEYS[2]) if n == 1 then redis.call('set', KEYS[1], ARGV[2]) end return {n, tonumber(ARGV[2])}`,
	} {
		b.Run(name, func(b *testing.B) {
			s, err := NewCache().Get(context.Background(), []byte(text))
			if err != nil {
				b.Fatal(err)
			}
			h := newShelf()
			var out resp.Writer
			keys, args := [][]byte{[]byte("k"), []byte("n")}, [][]byte{[]byte("v"), []byte("7")}
			for b.Loop() {
				out.Buf = out.Buf[:0]
				if err := s.Run(context.Background(), keys, args, h, &out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
