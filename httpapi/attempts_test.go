package httpapi

import (
	"fmt"
	"testing"
	"time"
)

// One task and the list of the dead tell of the attempts that have failed, and which token had the
// task. A delivery does not.
func TestAttemptsOfATask(t *testing.T) {
	r := guarded(t, Config{})
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","payload":1}`, bearer("schedule")), 201)
	receipt := func(attempt int) string {
		v := r.want(r.do("POST", "/v1/topics/t/reserve", `{"wait":"60s"}`, bearer("receive")), 200)
		d := v["tasks"].([]any)[0].(map[string]any)
		if d["attempts"] != nil {
			t.Errorf("a delivery shows %v", d["attempts"])
		}
		if d["attempt"] != float64(attempt) {
			t.Errorf("it is attempt %v", d["attempt"])
		}
		return receiptOf(d)
	}
	settle := func(verb, rest, receipt string) {
		r.want(r.do("POST", "/v1/receipts/"+verb, `{"receipts":["`+receipt+`"],"reason":"no stock"`+rest+`}`, bearer("receive")), 200)
	}
	settle("release", `,"delay":0`, receipt(1))
	settle("bury", "", receipt(2))
	for _, path := range []string{"/v1/topics/t/dead?details=false", "/v1/tasks?topic=t&state=dead&details=false"} {
		v := r.want(r.do("GET", path, "", bearer("read")), 200)["tasks"].([]any)[0].(map[string]any)
		if v["id"] != "a" || v["last_error"] != "no stock" || v["attempts"] != nil || v["payload"] != nil {
			t.Errorf("%s shows %v", path, v)
		}
	}
	for _, path := range []string{"/v1/tasks/a", "/v1/topics/t/dead", "/v1/tasks?topic=t&state=dead"} {
		v := r.want(r.do("GET", path, "", bearer("read")), 200)
		if list, ok := v["tasks"].([]any); ok {
			v = list[0].(map[string]any)
		}
		attempts := v["attempts"].([]any)
		if len(attempts) != 2 {
			t.Fatalf("%s shows %v", path, attempts)
		}
		for i, outcome := range []string{"failed", "buried"} {
			a := attempts[i].(map[string]any)
			if got := fmt.Sprint(a["attempt"], a["by"], a["outcome"], a["error"]); got != fmt.Sprint(i+1, "receive", outcome, "no stock") {
				t.Errorf("%s: attempt %d is %s", path, i, got)
			}
			at, err := time.Parse(instantLayout, a["at"].(string))
			took, wrong := time.ParseDuration(a["duration"].(string))
			if err != nil || wrong != nil || time.Since(at) > time.Minute || took < time.Millisecond {
				t.Errorf("%s: attempt %d ended at %v after %v", path, i, a["at"], a["duration"])
			}
		}
	}
}
