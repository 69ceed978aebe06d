package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/tasks"
)

func TestBatch(t *testing.T) {
	r := newRig(t)
	bodies := map[string]string{
		"application/json":     `[ %s , %s,%s,%s ,%s]`,
		"application/x-ndjson": "%s\n\n%s\r\n%s\n  \n%s\n%s",
	}
	for media, form := range bodies {
		p := strings.Split(media, "/")[1] + "-"
		body := fmt.Sprintf(form,
			`{"id":"`+p+`a","topic":"t","delay":"1h"}`,
			`{"id":"`+p+`b","topic":"t","delay":"-1h"}`,
			`{"topic":"u","delay":"1h","payload":[{"x":"]"}]}`,
			`{"id":"`+p+`a","topic":"t","delay":"1h"}`,
			`{"id":"`+p+`c","topic":"t","delya":"1h"}`)
		v := r.want(r.do("POST", "/v1/tasks/batch", body, "Content-Type: "+media), 200)
		ids := v["ids"].([]any)
		if v["accepted"] != 2.0 || len(ids) != 5 || ids[0] != p+"a" || ids[1] != "" || len(ids[2].(string)) != 36 || ids[3] != "" || ids[4] != "" {
			t.Errorf("%s: answered %v", media, v)
		}
		var got []string
		for _, e := range v["errors"].([]any) {
			e := e.(map[string]any)
			problem := e["problem"].(map[string]any)
			field := problem["errors"].([]any)[0].(map[string]any)["field"]
			got = append(got, fmt.Sprintf("%v %v %v %v", e["index"], e["id"], problem["status"], field))
		}
		want := fmt.Sprintf("1 %sb 422 delay, 3 %sa 422 id, 4 %sc 422 delya", p, p, p)
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("%s: errors are %s, want %s", media, s, want)
		}
		r.want(r.do("GET", "/v1/tasks/"+ids[2].(string), ""), 200)
		// A repeated batch accepts tasks that exist with the same content.
		v = r.want(r.do("POST", "/v1/tasks/batch", `[{"id":"`+p+`a","topic":"t","delay":"1h"},{"id":"`+p+`a2","topic":"t","delay":"1h"}]`), 200)
		if v["accepted"] != 2.0 || fmt.Sprint(v["repeated"]) != "["+p+"a]" {
			t.Errorf("repeated, it is answered %v", v)
		}
		v = r.want(r.do("POST", "/v1/tasks/batch", `[{"id":"`+p+`a","topic":"t","delay":"2h"}]`), 200)
		if v["accepted"] != 0.0 || v["errors"].([]any)[0].(map[string]any)["problem"].(map[string]any)["type"] != "/problems/id_taken" {
			t.Errorf("with other content, it is answered %v", v)
		}
	}
}

func TestBatchMayBeEmptyOrFull(t *testing.T) {
	r := newRig(t)
	if v := r.want(r.do("POST", "/v1/tasks/batch", `[]`), 200); v["accepted"] != 0.0 {
		t.Errorf("an empty one is answered %v", v)
	}
	full := "[" + strings.Repeat(`{"topic":"t","delay":"1h"},`, tasks.MaxBatch-1) + `{"topic":"t","delay":"1h"}]`
	if v := r.want(r.do("POST", "/v1/tasks/batch", full), 200); v["accepted"] != float64(tasks.MaxBatch) {
		t.Errorf("%v of %d were accepted", v["accepted"], tasks.MaxBatch)
	}
	if n := r.scheduler.Stats().Total.Pending; n != tasks.MaxBatch {
		t.Errorf("%d are pending", n)
	}
}

func TestBatchDoesNotRepeatBadIDs(t *testing.T) {
	r := newRig(t)
	a := r.do("POST", "/v1/tasks/batch", `[{"id":"`+strings.Repeat("x", 200)+`","topic":1},{"id":"a b","topic":1},{"id":"é","topic":"t"}]`)
	v := r.want(a, 200)
	for _, e := range v["errors"].([]any) {
		if id := e.(map[string]any)["id"]; id != nil {
			t.Errorf("the answer repeats %v", id)
		}
	}
}

// A stub answers what the test sets.
type stub struct {
	task  tasks.Task
	err   error
	batch []tasks.Result
}

func (s stub) Schedule(context.Context, tasks.Request) (tasks.Task, error) { return s.task, s.err }

func (s stub) ScheduleBatch(context.Context, []tasks.Request) ([]tasks.Result, error) {
	return s.batch, s.err
}

func newStub(t *testing.T, s stub) *rig {
	t.Helper()
	api, err := newServer(Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	api.attach(s)
	return serve(t, api)
}

func TestUnknownOutcomeNamesTheID(t *testing.T) {
	r := newStub(t, stub{task: tasks.Task{ID: "made"}, err: fmt.Errorf("%w: no answer", tasks.ErrUnknown)})
	a := r.do("POST", "/v1/tasks", `{"topic":"t"}`)
	r.refused(a, 503, "outcome_unknown", "")
	if v := r.want(a, 503); v["id"] != "made" || a.header.Get("Retry-After") != "1" {
		t.Errorf("answered %v, Retry-After %q", v, a.header.Get("Retry-After"))
	}
}

func TestBatchDuringAnOutage(t *testing.T) {
	none := func(err error) tasks.Result { return tasks.Result{ID: "n", Err: err} }
	const two = `[{"topic":"t"},{"topic":"t"}]`

	r := newStub(t, stub{batch: []tasks.Result{none(tasks.ErrUnknown), none(tasks.ErrUnknown)}})
	a := r.do("POST", "/v1/tasks/batch", two)
	r.refused(a, 503, "outcome_unknown", "")
	if v := r.want(a, 503); fmt.Sprint(v["ids"]) != "[n n]" || a.header.Get("Retry-After") != "1" {
		t.Errorf("answered %v", v)
	}

	r = newStub(t, stub{batch: []tasks.Result{none(tasks.ErrOverloaded), none(tasks.ErrOverloaded)}})
	r.refused(r.do("POST", "/v1/tasks/batch", two), 429, "overloaded", "")

	r = newStub(t, stub{batch: []tasks.Result{{ID: "a"}, none(tasks.ErrUnknown)}})
	v := r.want(r.do("POST", "/v1/tasks/batch", two), 200)
	problem := v["errors"].([]any)[0].(map[string]any)["problem"].(map[string]any)
	if v["accepted"] != 1.0 || problem["id"] != "n" {
		t.Errorf("answered %v", v)
	}

	r = newStub(t, stub{err: tasks.ErrClosed})
	r.refused(r.do("POST", "/v1/tasks/batch", two), 503, "shutting_down", "")
}

func TestUnforeseenErrorsAreInternal(t *testing.T) {
	r := newStub(t, stub{err: errors.New("secret path")})
	a := r.do("POST", "/v1/tasks", `{"topic":"t"}`)
	r.refused(a, 500, "internal", "")
	if strings.Contains(string(a.body), "secret") {
		t.Errorf("the answer tells %s", a.body)
	}
	r = newStub(t, stub{batch: []tasks.Result{{Err: errors.New("secret path")}}})
	r.refused(r.do("POST", "/v1/tasks/batch", `[{"topic":"t"}]`), 500, "internal", "")
}
