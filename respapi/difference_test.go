package respapi_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// A side is one of the two servers whose answers are compared.
type side struct {
	nc net.Conn
	in *bufio.Reader
}

func dialSide(t *testing.T, addr string) *side {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return &side{nc, bufio.NewReader(nc)}
}

// A reply is an answer as it came: its bytes, and its parts if it is an aggregate.
type reply struct {
	raw   string // without parts
	parts []reply
}

func (r *reply) String() string {
	var b strings.Builder
	b.WriteString(strconv.Quote(r.raw))
	for i := range r.parts {
		fmt.Fprintf(&b, " %s", &r.parts[i])
	}
	return b.String()
}

// unexpected returns the error of a value that has ended before it was whole.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// read reads one answer. Error: io.EOF if there is none.
func (s *side) read() (reply, error) {
	head, err := s.in.ReadString('\n')
	if err != nil && head != "" {
		err = unexpected(err)
	}
	if err != nil {
		return reply{}, err
	}
	r, n := reply{raw: head}, 0
	if !strings.HasSuffix(head, "\r\n") || !strings.ContainsRune("$=*~>%+-:_#,(", rune(head[0])) {
		return r, fmt.Errorf("no value begins with %q", head)
	}
	if strings.ContainsRune("$=*~>%", rune(head[0])) {
		if n, err = strconv.Atoi(strings.TrimSpace(head[1:])); err != nil {
			return r, fmt.Errorf("%q: %w", head, err)
		}
	}
	switch head[0] {
	case '$', '=':
		if n >= 0 {
			b := make([]byte, n+2)
			if _, err := io.ReadFull(s.in, b); err != nil {
				return r, fmt.Errorf("%q: %w", head, unexpected(err))
			}
			r.raw += string(b)
		}
		n = 0
	case '%':
		n *= 2
	}
	for len(r.parts) < n {
		part, err := s.read()
		if err != nil {
			return r, fmt.Errorf("%q: %w", head, unexpected(err))
		}
		if part.raw[0] != '>' { // what is pushed may come in between
			r.parts = append(r.parts, part)
		}
	}
	return r, nil
}

func encode(args []string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.Bytes()
}

// pipeline sends commands at once, and returns their answers.
func (s *side) pipeline(commands [][]string) ([]reply, error) {
	var b []byte
	for _, c := range commands {
		b = append(b, encode(c)...)
	}
	_ = s.nc.SetDeadline(time.Now().Add(20 * time.Second))
	go func() { _, _ = s.nc.Write(b) }()
	all := make([]reply, len(commands))
	for i, c := range commands {
		var err error
		if all[i], err = s.read(); err != nil {
			return nil, fmt.Errorf("%q: %w", c, err)
		}
	}
	return all, nil
}

// times are verbs whose integers are times: they may differ by as much as the two answers lie
// apart.
var times = []string{"ttl", "pttl", "expiretime", "pexpiretime"}

// unordered are verbs whose arrays have no order.
var unordered = []string{"keys"}

// alike reports whether two answers to a command count as the same.
func alike(args []string, a, b *reply) bool {
	verb := strings.ToLower(args[0])
	switch {
	case slices.Contains(times, verb) && a.raw[0] == ':' && b.raw[0] == ':':
		x, _ := strconv.ParseInt(strings.TrimSpace(a.raw[1:]), 10, 64)
		y, _ := strconv.ParseInt(strings.TrimSpace(b.raw[1:]), 10, 64)
		within := int64(1)
		if verb[0] == 'p' {
			within = 20_000 // a machine that is busy
		} else if verb == "ttl" || verb == "expiretime" {
			within = 20
		}
		return x == y || x > 0 && y > 0 && max(x-y, y-x) <= within
	case verb == "dbsize" && a.raw[0] == ':' && b.raw[0] == ':':
		return a.raw >= b.raw // Redis counts keys that have expired until it looks at them
	case slices.Contains(unordered, verb):
		a.sort()
		b.sort()
	}
	return a.String() == b.String()
}

func (r *reply) sort() {
	slices.SortFunc(r.parts, func(x, y reply) int { return strings.Compare(x.raw, y.raw) })
}

// A queue holds the commands of the transaction that is open.
type queue [][]string

// same reports whether two answers to a command count as the same, and notes a command that waits
// for EXEC. The parts of an answer to EXEC are compared as those of the commands that waited.
// certain is false where the two servers may hold different keys from here on.
func (q *queue) same(args []string, a, b *reply) (same, certain bool) {
	if a.raw == "+QUEUED\r\n" {
		*q = append(*q, args)
		return a.raw == b.raw, true
	}
	if !strings.EqualFold(args[0], "exec") || len(a.parts) == 0 {
		switch strings.ToLower(args[0]) {
		case "exec", "discard", "reset":
			*q = nil
		}
		same = alike(args, a, b)
		return same, same || !dependsOnClock(args)
	}
	waited := *q
	*q = nil
	if a.raw != b.raw || len(a.parts) != len(waited) {
		return false, true
	}
	for i, c := range waited {
		if !alike(c, &a.parts[i], &b.parts[i]) {
			return false, !dependsOnClock(c)
		}
	}
	return true, true
}

// dependsOnClock reports whether the answer to a command tells which of two deadlines is later that
// may be the same. The clock of one server may turn between them, and not that of the other.
func dependsOnClock(args []string) bool {
	verb := strings.ToLower(args[0])
	return (verb == "expire" || verb == "pexpire") && slices.ContainsFunc(args, func(a string) bool {
		return strings.EqualFold(a, "gt") || strings.EqualFold(a, "lt")
	})
}

// drawn are the keys, values and numbers of random commands.
var (
	drawnKeys   = []string{"k", "k2", "order:42", "a b", "\xff\x00", ":x", "", "Ünder", "e@mail", strings.Repeat("long", 40)}
	drawnValues = []string{"v", "", "10", "-3", "3.5", "9223372036854775807", "a\r\nb", "\x00\xff", "007"}
	drawnNumber = []string{"0", "1", "-1", "100", "3600", "1.5", "x", "", "9223372036854775807", "-9223372036854775808", "99999999999999999999"}
)

// A shape is a form of a command: words that stand for themselves, and kinds of arguments in angle
// brackets. What stands in square brackets may be left out; bars separate alternatives.
var shapes = []string{
	"SET <key> <value> [<option>] [<option>] [<option>]", "SET <key> <value>", "SETEX <key> <ttl> <value>", "PSETEX <key> <pttl> <value>",
	"SETNX <key> <value>", "GET <key>", "GETEX <key> [<getex>]", "GETDEL <key>", "GETSET <key> <value>",
	"MGET <key> <key> [<key>]", "MSET <key> <value> <key> <value>", "MSETNX <key> <value> <key> <value>", "MSET <key>",
	"STRLEN <key>", "APPEND <key> <value>", "INCR <key>", "DECR <key>", "INCRBY <key> <number>", "DECRBY <key> <number>",
	"INCRBYFLOAT <key> <value>", "GETRANGE <key> <number> <number>", "SETRANGE <key> <small> <value>", "SUBSTR <key> <number> <number>",
	"EXPIRE <key> <ttl> [<when>] [<when>]", "PEXPIRE <key> <pttl> [<when>]", "EXPIREAT <key> <at> [<when>]", "PEXPIREAT <key> <pat> [<when>]",
	"PERSIST <key>", "TTL <key>", "PTTL <key>", "EXPIRETIME <key>", "PEXPIRETIME <key>",
	"DEL <key> [<key>]", "UNLINK <key> [<key>]", "EXISTS <key> [<key>]", "TYPE <key>", "TOUCH <key> [<key>]",
	"RENAME <key> <key>", "RENAMENX <key> <key>", "COPY <key> <key> [REPLACE]", "KEYS <pattern>", "DBSIZE",
	"PING", "ECHO <value>", "SELECT 0", "SELECT x", "FOO <value>", "GET", "MULTI", "EXEC", "DISCARD", "WATCH <key>", "UNWATCH",
	"EVAL <script> 2 <key> <key> <value> <number>", "EVAL <script> 2 <key> <key> <value> <number>", "EVAL_RO <script> 2 <key> <key> <value> <number>",
	"get <key>", "Ttl <key>",
}

// drawnScripts change nothing once they fail, since Redis keeps what a script has done until then.
var drawnScripts = []string{
	"return {redis.pcall('get', KEYS[1]), redis.pcall('strlen', KEYS[2]), KEYS, ARGV}",
	"return redis.call('set', KEYS[1], ARGV[1], 'EX', ARGV[2])",
	"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
	"local n = redis.pcall('incrby', KEYS[1], ARGV[2]) if n == 1 then redis.pcall('expire', KEYS[1], 1000) end return n",
	"for i, v in ipairs(redis.call('mget', KEYS[1], KEYS[2])) do if not v then redis.call('set', KEYS[i], ARGV[1] .. i) return i end end return -1",
	"local n = tonumber(ARGV[2]) if not n then return redis.error_reply('NONE ' .. ARGV[2]) end return {n, n / 3, tostring(n), math.floor(n / 7)}",
	"local t = {} for i = 1, 3 do t[#t + 1] = redis.call('append', KEYS[i % 2 + 1], i) end return table.concat(t, ',')",
	"redis.pcall('persist', KEYS[1]) return redis.status_reply(redis.call('type', KEYS[1]).ok:upper())",
	"return redis.call('incr', KEYS[1])",
	"return {redis.call('exists', KEYS[1], KEYS[2]) > 0, redis.call('ttl', KEYS[1]) < 0, #redis.call('getrange', KEYS[2], 0, ARGV[2])}",
	"return redis.pcall('nothing', ARGV[1]).err .. string.format('%5.2f|%s|%d', 1/3, ARGV[2], 42.9)",
	"local ok, n = pcall(function() return ARGV[1] + ARGV[2] end) return {ok, ok and n}",
}

// drawArgument draws an argument of a kind.
func drawArgument(t *rapid.T, kind string, now time.Time) []string {
	pick := func(of ...string) string { return rapid.SampledFrom(of).Draw(t, kind) }
	in := func(unit time.Duration) string {
		d := rapid.SampledFrom([]time.Duration{100 * time.Second, time.Hour, 50 * time.Hour}).Draw(t, "duration")
		return strconv.FormatInt(int64(d/unit), 10)
	}
	switch kind {
	case "key":
		return []string{pick(drawnKeys...)}
	case "value":
		return []string{pick(drawnValues...)}
	case "number":
		return []string{pick(drawnNumber...)}
	case "script":
		return []string{pick(drawnScripts...)}
	case "small":
		return []string{pick("0", "1", "5", "-1", "x")}
	case "pattern":
		return []string{pick("*", "k*", "?", "[^k]*", "*\\**", "order:4[0-9]", "", "[a-")}
	case "ttl":
		return []string{pick(in(time.Second), in(time.Second), "0", "-1", "x", "9223372036854775807")}
	case "pttl":
		return []string{pick(in(time.Millisecond), in(time.Millisecond), "0", "-5", "1.5", "9223372036854775807")}
	case "at":
		return []string{pick(strconv.FormatInt(now.Add(time.Hour).Unix(), 10), strconv.FormatInt(now.Add(2*time.Hour).Unix(), 10), "1", "-1", "x")}
	case "pat":
		return []string{pick(strconv.FormatInt(now.Add(time.Hour).UnixMilli(), 10), "1000", "x")}
	case "when":
		return []string{pick("NX", "XX", "GT", "LT", "gt", "YY")}
	case "getex":
		return drawOption(t, now, "PERSIST", "EX", "PX", "EXAT", "PXAT", "NX")
	}
	return drawOption(t, now, "NX", "XX", "GET", "KEEPTTL", "EX", "PX", "EXAT", "PXAT", "ex", "YY")
}

// drawOption draws an option of SET or GETEX, with what follows it.
func drawOption(t *rapid.T, now time.Time, of ...string) []string {
	o := rapid.SampledFrom(of).Draw(t, "option")
	switch strings.ToUpper(o) {
	case "EX":
		return append([]string{o}, drawArgument(t, "ttl", now)...)
	case "PX":
		return append([]string{o}, drawArgument(t, "pttl", now)...)
	case "EXAT":
		return append([]string{o}, drawArgument(t, "at", now)...)
	case "PXAT":
		return append([]string{o}, drawArgument(t, "pat", now)...)
	}
	return []string{o}
}

// drawCommand draws a command of some shape.
func drawCommand(t *rapid.T, now time.Time) []string {
	var args []string
	for _, word := range strings.Fields(rapid.SampledFrom(shapes).Draw(t, "shape")) {
		inner, optional := strings.CutPrefix(word, "[")
		if optional {
			inner = strings.TrimSuffix(inner, "]")
			if !rapid.Bool().Draw(t, "given") {
				continue
			}
		}
		if kind, ok := strings.CutPrefix(inner, "<"); ok {
			args = append(args, drawArgument(t, strings.TrimSuffix(kind, ">"), now)...)
		} else {
			args = append(args, inner)
		}
	}
	return args
}

// TestDifferential gives the same random pipelines to Redis and to Lapse, and compares all answers
// byte by byte.
func TestDifferential(t *testing.T) {
	redis := dialSide(t, redistest.Start(t).Addr)
	lapse := dialSide(t, newRig(t, Config{Flush: true}, tasks.Config{}).addr)
	rapid.Check(t, func(t *rapid.T) {
		now := time.Now()
		begin := [][]string{{"RESET"}, {"HELLO", rapid.SampledFrom([]string{"2", "3"}).Draw(t, "protocol")}, {"FLUSHALL"}}
		for _, s := range []*side{redis, lapse} {
			if _, err := s.pipeline(begin); err != nil {
				t.Fatal(err)
			}
		}
		var waiting queue
		for range rapid.IntRange(1, 5).Draw(t, "pipelines") {
			commands := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []string { return drawCommand(t, now) }), 1, 12).Draw(t, "commands")
			want, err := redis.pipeline(commands)
			if err != nil {
				t.Fatal("redis: ", err)
			}
			got, err := lapse.pipeline(commands)
			if err != nil {
				t.Fatal("lapse: ", err)
			}
			for i, c := range commands {
				same, certain := waiting.same(c, &want[i], &got[i])
				if !certain {
					return
				}
				if !same {
					t.Fatalf("%q: redis answers %s, lapse %s", c, &want[i], &got[i])
				}
			}
		}
	})
}

// A difference is an entry of testdata/differences.txt: commands, and the answers of both to the
// last of them.
type difference struct {
	line         int
	commands     [][]string
	redis, lapse string
}

// differences reads the file of known differences.
func differences(t *testing.T) (all []difference) {
	t.Helper()
	text, err := os.ReadFile("testdata/differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	var d difference
	for i, line := range strings.Split(string(text), "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		switch kind {
		case ">":
			if len(d.commands) == 0 {
				d.line = i + 1
			}
			d.commands = append(d.commands, words(rest))
		case "redis:":
			d.redis = rest
		case "lapse:":
			d.lapse = rest
			all = append(all, d)
			d = difference{}
		}
	}
	return all
}

// words are those of a command; "" is an empty one.
func words(line string) (all []string) {
	for word := range strings.FieldsSeq(line) {
		all = append(all, strings.Trim(word, `"`))
	}
	return all
}

// mostDifferences is how many differences there are. It may only be lowered.
const mostDifferences = 10

// Each known difference is one: the answers are those of the file, and not the same.
func TestKnownDifferences(t *testing.T) {
	all := differences(t)
	if len(all) != mostDifferences {
		t.Errorf("there are %d differences, and their bound is %d", len(all), mostDifferences)
	}
	redis := dialSide(t, redistest.Start(t).Addr)
	lapse := dialSide(t, newRig(t, Config{Flush: true}, tasks.Config{}).addr)
	for _, d := range all {
		for s, want := range map[*side]string{redis: d.redis, lapse: d.lapse} {
			got, err := s.pipeline(append([][]string{{"RESET"}, {"FLUSHALL"}}, d.commands...))
			if err != nil {
				t.Fatalf("line %d: %v", d.line, err)
			}
			if last := got[len(got)-1].String(); last != want {
				t.Errorf("line %d: the answer is %s, and the file says %s", d.line, last, want)
			}
		}
		if d.redis == d.lapse {
			t.Errorf("line %d: the answers do not differ", d.line)
		}
	}
}

// missing returns the commands of Redis that the file names as those that Lapse does not have.
func missing(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile("testdata/differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(line, "missing:"); ok {
			names = append(names, strings.Fields(list)...)
		}
	}
	return names
}

// The file of differences names all commands of Redis that Lapse does not have, and no others.
func TestMissingCommands(t *testing.T) {
	redis := dialSide(t, redistest.Start(t).Addr)
	addr := newRig(t, Config{}, tasks.Config{}).addr
	list, err := redis.pipeline([][]string{{"COMMAND", "LIST"}})
	if err != nil {
		t.Fatal(err)
	}
	var names, lacks []string
	for _, part := range list[0].parts {
		names = append(names, strings.Split(part.raw, "\r\n")[1])
	}
	slices.Sort(names) // a command comes before its subcommands
	for _, name := range names {
		parent, _, _ := strings.Cut(name, "|")
		if slices.Contains(lacks, parent) {
			continue
		}
		command := append(strings.Split(name, "|"), slices.Repeat([]string{"x"}, 12)...)
		got, err := dialSide(t, addr).pipeline([][]string{command})
		if err != nil {
			t.Fatal(name, ": ", err)
		}
		if unknown := strings.HasPrefix(got[0].raw, "-ERR unknown command"); unknown || strings.Contains(name, "|") && strings.HasPrefix(got[0].raw, "-ERR unknown subcommand '") {
			lacks = append(lacks, name)
		}
	}
	if want := missing(t); !slices.Equal(lacks, want) {
		t.Errorf("these commands of Redis are missing:\n%s\nand the file names\n%s", strings.Join(lacks, " "), strings.Join(want, " "))
	}
}
