package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/client"
)

// exported reads an export to its end.
func exported(t *testing.T, c *client.Client, topics ...string) (text []byte, counts client.ExportCounts) {
	t.Helper()
	for p, err := range c.ExportPages(t.Context(), client.ExportQuery{Topics: topics}) {
		check(t, "ExportPages", err, nil)
		text, counts = append(text, p.Lines...), p.Counts
	}
	return text, counts
}

// content is the sorted lines of an export, but for the first one, which tells the time.
func content(text []byte) []string {
	all := strings.Split(string(text), "\n")[1:]
	slices.Sort(all)
	return all
}

// filled is a server with tasks, of which an export has more than two requests.
func filled(t *testing.T) *client.Client {
	t.Helper()
	c := served(t)
	for part := range 3 {
		requests := make([]client.Request, 9000)
		for i := range requests {
			requests[i] = client.Request{ID: fmt.Sprintf("task-%d-%d", part, i), Topic: "x", Delay: time.Hour, Payload: []byte(`{"n":1}`)}
		}
		_, err := c.ScheduleBatch(t.Context(), requests)
		check(t, "ScheduleBatch", err, nil)
	}
	_, err := c.SetTopic(t.Context(), "x", client.Settings{Weight: 7}, -1)
	check(t, "SetTopic", err, nil)
	return c
}

func TestExportAndImport(t *testing.T) {
	text, counts := exported(t, filled(t))
	if counts != (client.ExportCounts{Topics: 1, Tasks: 27_000}) {
		t.Errorf("exported %+v", counts)
	}
	c := served(t)
	var last client.ImportProgress
	done, err := c.ImportFrom(t.Context(), bytes.NewReader(text), client.ImportOptions{Progress: func(p client.ImportProgress) {
		if p.Lines < last.Lines || p.Bytes < last.Bytes {
			t.Errorf("%+v after %+v", p, last)
		}
		last = p
	}}, func(e client.ImportError) { t.Errorf("line %d: %v", e.Line, e.Problem) })
	check(t, "ImportFrom", err, nil)
	if done != last || done.Imported != 27_000 || done.Topics != 1 || done.Bytes != int64(len(text)) || done.Lines != int64(bytes.Count(text, []byte("\n"))) {
		t.Errorf("imported %+v", done)
	}
	again, _ := exported(t, c)
	if !slices.Equal(content(text), content(again)) {
		t.Error("the second server exports something else")
	}
	done, err = c.ImportFrom(t.Context(), bytes.NewReader(text), client.ImportOptions{Skip: 20_000}, nil)
	check(t, "a repeated ImportFrom", err, nil)
	if done.Imported != 0 || done.Present != 27_000+2-20_000 || done.Lines != last.Lines {
		t.Errorf("imported again: %+v", done)
	}
}

// An export that is cut off is imported as far as it goes, and the error says so.
func TestImportOfTruncated(t *testing.T) {
	text, _ := exported(t, filled(t))
	c := served(t)
	whole := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	end := whole[len(whole)-1]
	for name, cut := range map[string][]byte{
		"without its end":      bytes.TrimSuffix(text, append(end, '\n')),
		"within a line":        text[:len(text)-len(end)-20],
		"a line from its part": append(bytes.Join(slices.Delete(slices.Clone(whole), 5, 6), []byte("\n")), '\n'),
	} {
		done, err := c.ImportFrom(t.Context(), bytes.NewReader(cut), client.ImportOptions{}, nil)
		if !errors.Is(err, client.ErrTruncated) || done.Imported+done.Present < 26_900 {
			t.Errorf("%s: %+v, %v", name, done, err)
		}
	}
	for _, no := range []string{"", "x\n", `{"id":"a","topic":"x"}` + "\n"} {
		_, err := c.ImportFrom(t.Context(), strings.NewReader(no), client.ImportOptions{}, nil)
		check(t, "ImportFrom of "+no, err, client.ErrNoExport)
	}
	_, err := c.ImportFrom(t.Context(), strings.NewReader(`{"type":"lapse_export","version":2}`+"\n"+`{"type":"topic","topic":"x","settings":{}}`+"\n"), client.ImportOptions{}, nil)
	check(t, "an export of another version", err, client.ErrInvalid)
}

// What the server cannot take at the moment is sent again, line by line or all of it. What it
// refuses for good is not.
func TestImportSendsAgain(t *testing.T) {
	var requests atomic.Int64
	text := `{"type":"lapse_export","version":1}` + "\n" + `{"type":"task","id":"a"}` + "\n" + `{"type":"task","id":"b"}` + "\n" + `{"type":"end","topics":0,"tasks":2,"dead":0,"finished":0}` + "\n"
	c := over(t, client.Options{Retries: -1, MaxWait: time.Nanosecond}, func(r *http.Request, body string) (*http.Response, error) {
		if r.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("sent as %s", r.Header.Get("Content-Type"))
		}
		switch requests.Add(1) {
		case 1:
			return nil, io.ErrUnexpectedEOF
		case 2:
			return problem(503, "ledger_unavailable"), nil
		case 3:
			return answer(200, `{"imported":0,"present":0,"errors":[{"line":2,"id":"a","problem":{"type":"/problems/overloaded","status":429}},{"line":3,"id":"b","problem":{"type":"/problems/id_taken","status":409}}]}`), nil
		default:
			if want := `{"type":"task","id":"a"}` + "\n"; body != want {
				t.Errorf("sent %q, want %q", body, want)
			}
			return answer(200, `{"imported":1,"present":0,"errors":[]}`), nil
		}
	})
	var refused []int
	done, err := c.ImportFrom(t.Context(), strings.NewReader(text), client.ImportOptions{}, func(e client.ImportError) { refused = append(refused, e.Line) })
	check(t, "ImportFrom", err, nil)
	if done.Imported != 1 || done.Refused != 1 || done.Lines != 4 || !slices.Equal(refused, []int{3}) || requests.Load() != 4 {
		t.Errorf("%+v, refused %v, %d requests", done, refused, requests.Load())
	}
	c = over(t, client.Options{Retries: -1, MaxWait: time.Nanosecond}, func(*http.Request, string) (*http.Response, error) { return problem(503, "ledger_unavailable"), nil })
	_, err = c.ImportFrom(t.Context(), strings.NewReader(text), client.ImportOptions{Patience: time.Millisecond}, nil)
	check(t, "ImportFrom without a ledger", err, client.ErrUnavailable)
}

// Tasks are sent when the settings of topics before them are stored: a topic may be paused.
func TestImportTopicsFirst(t *testing.T) {
	var text strings.Builder
	text.WriteString(`{"type":"lapse_export","version":1}` + "\n" + `{"type":"topic","topic":"x"}` + "\n")
	const tasks = 25_000
	for range tasks {
		text.WriteString(`{"type":"task"}` + "\n")
	}
	fmt.Fprintf(&text, `{"type":"end","topics":1,"tasks":%d,"dead":0,"finished":0}`+"\n", tasks)
	synctest.Test(t, func(t *testing.T) {
		var stored atomic.Bool
		c := over(t, client.Options{}, func(_ *http.Request, body string) (*http.Response, error) {
			if strings.Contains(body, `"topic"`) {
				time.Sleep(time.Second) // in which the others would come
				stored.Store(true)
			} else if !stored.Load() {
				t.Error("tasks are sent before the settings of their topic are stored")
			}
			return answer(200, `{"imported":1,"errors":[]}`), nil
		})
		_, err := c.ImportFrom(t.Context(), strings.NewReader(text.String()), client.ImportOptions{}, nil)
		check(t, "ImportFrom", err, nil)
	})
}

// No task is sent if the settings of the topics before it could not be stored.
func TestImportWithoutItsTopics(t *testing.T) {
	text := `{"type":"lapse_export","version":1}` + "\n" + `{"type":"topic","topic":"x"}` + "\n" +
		strings.Repeat(`{"type":"task"}`+"\n", 50_000)
	for range 20 { // requests would go at the same time
		var requests atomic.Int64
		c := over(t, client.Options{}, func(*http.Request, string) (*http.Response, error) {
			requests.Add(1)
			return problem(401, "unauthorized"), nil
		})
		_, err := c.ImportFrom(t.Context(), strings.NewReader(text), client.ImportOptions{}, nil)
		if check(t, "ImportFrom", err, client.ErrUnauthorized); requests.Load() != 1 {
			t.Fatalf("%d requests", requests.Load())
		}
	}
}

// Lines that are too long together for a server go with several requests.
func TestImportOfLongBodies(t *testing.T) {
	const most = 100
	c := over(t, client.Options{}, func(_ *http.Request, body string) (*http.Response, error) {
		if len(body) > most {
			return problem(413, "too_large"), nil
		}
		return answer(200, fmt.Sprintf(`{"imported":%d,"errors":[]}`, strings.Count(body, `"task"`))), nil
	})
	text := `{"type":"lapse_export","version":1}` + "\n"
	for i := range 9 {
		text += fmt.Sprintf(`{"type":"task","id":"%0*d"}`, 30, i) + "\n"
	}
	text += `{"type":"task","id":"` + strings.Repeat("a", most) + `"}` + "\n" + `{"type":"end","topics":0,"tasks":10,"dead":0,"finished":0}` + "\n"
	var refused []int
	done, err := c.ImportFrom(t.Context(), strings.NewReader(text), client.ImportOptions{}, func(e client.ImportError) {
		check(t, "a long line", e.Problem, client.ErrTooLarge)
		refused = append(refused, e.Line)
	})
	check(t, "ImportFrom", err, nil)
	if done.Imported != 9 || !slices.Equal(refused, []int{11}) {
		t.Errorf("%+v, refused %v", done, refused)
	}
}
