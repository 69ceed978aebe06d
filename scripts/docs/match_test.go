package docs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What differs from run to run, and what takes its place before outputs are compared. The order
// matters: a receipt has numbers in it.
var volatile = []struct {
	is   *regexp.Regexp
	sign string
	// A command may repeat what an earlier output has shown, such as a receipt. Then it gets that
	// of this run.
	repeated bool
}{
	{regexp.MustCompile(`lapse_[A-Z2-7]{26,}`), "<token>", true},
	{regexp.MustCompile(`"next_cursor":"([^"]+)"`), `"next_cursor":"<cursor>"`, true},
	{regexp.MustCompile(`"?\b\d+\.[a-z][0-9a-z]{5,8}"`), "<etag>", true},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`), "<id>", true},
	{regexp.MustCompile(`,?"request_id":"[^"]*"`), "", false},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "<digest>", false},
	{regexp.MustCompile(`[A-Za-z0-9_-]{48,}`), "<receipt>", true},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?( ?[+-]\d{4}|Z)?`), "<time>", false},
	{regexp.MustCompile(`\b(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+(?:\.\d+)?(?:ms|µs|s)|\d+m\d+s)\b`), "<time>", false},
	{regexp.MustCompile(`\b\d{10,13}-\d+\b`), "<entry>", false},
}

// normal takes out what differs from run to run, and all space.
func normal(text string) string {
	for _, v := range volatile {
		text = v.is.ReplaceAllString(text, v.sign)
	}
	return strings.Join(strings.Fields(text), "")
}

// missing returns the first part of what a page shows that the output has not, and "" if it has
// all. Lines that begin with space belong to the line before. Lines must come in order, with others
// between; so must the parts of a line that "..." separates.
func missing(shown, output string) string {
	var lines []string
	for line := range strings.Lines(shown) {
		if line = strings.TrimRight(line, "\n"); len(lines) > 0 && strings.HasPrefix(line, " ") {
			lines[len(lines)-1] += line
		} else if line != "" {
			lines = append(lines, line)
		}
	}
	rest := normal(output)
	for _, line := range lines {
		for part := range strings.SplitSeq(normal(line), "...") {
			part = strings.Trim(part, ",") // of fields that are left out
			_, after, found := strings.Cut(rest, part)
			if !found {
				return part
			}
			rest = after
		}
	}
	return ""
}

// A memory has what earlier outputs of a page have shown, by what the page shows in its place.
type memory map[string]string

// learn compares what the page shows with the output, and remembers what may be repeated.
func (m memory) learn(shown, output string) {
	for _, v := range volatile {
		if !v.repeated {
			continue
		}
		of := v.is.FindAllStringSubmatch(output, -1)
		for i, s := range v.is.FindAllStringSubmatch(shown, -1) {
			if i < len(of) {
				m[s[len(s)-1]] = of[i][len(s)-1]
			}
		}
	}
}

// fill puts into a command what was learnt.
func (m memory) fill(command string) string {
	for shown, real := range m {
		command = strings.ReplaceAll(command, shown, real)
	}
	return command
}

// ahead moves the years of deadlines that pages name, so that they are ahead.
func ahead(command string) string {
	return strings.ReplaceAll(command, "2027-", fmt.Sprintf("%d-", time.Now().Year()+1))
}

func TestMissing(t *testing.T) {
	output := "HTTP/1.1 201 Created\nDate: today\nLocation: /v1/tasks/a\n\n" +
		`{"id":"a","due_at":"2026-11-24T15:00:00.123Z","attempt":0,"took":"1.91172s"}` + "\n"
	for shown, want := range map[string]string{
		"HTTP/1.1 201 Created\n{\"id\":\"a\",\n \"due_at\":\"2020-01-01T00:00:00.000Z\", ..., \"took\":\"10ms\"}": "",
		"Location: /v1/tasks/a\nHTTP/1.1 201 Created":                                                             "HTTP/1.1201Created",
		`{"id":"b"`:                   `{"id":"b"`,
		`{"id":"a", ..., "attempt":1`: `"attempt":1`,
	} {
		if got := missing(shown, output); got != want {
			t.Errorf("of %q it lacks %q, want %q", shown, got, want)
		}
	}
	m := memory{}
	m.learn(`{"next_cursor":"AWgxF...", "receipt":"AQAAAQAAAAIAAADttr_5oQEAAMiyAJ1irxLbb3JkZXItNDJFxFYOFzu7eycuy9U"}`,
		`{"next_cursor":"real","receipt":"AQAAAQAAAAIAAADttr_5oQEAAMiyAJ1irxLbb3JkZXItNDJFxFYOFzu7eycuyREAL"}`)
	if got := m.fill(`--json '{"cursor":"AWgxF..."}'`); got != `--json '{"cursor":"real"}'` {
		t.Error(got)
	}
	if got := m.fill("ack AQAAAQAAAAIAAADttr_5oQEAAMiyAJ1irxLbb3JkZXItNDJFxFYOFzu7eycuy9U"); !strings.HasSuffix(got, "REAL") {
		t.Error(got)
	}
}
