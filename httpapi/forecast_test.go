package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

func TestForecast(t *testing.T) {
	r := newRig(t)
	for i, delay := range []string{"90s", "95s", "150m", "0"} {
		r.want(r.do("POST", "/v1/tasks", fmt.Sprintf(`{"topic":"t%d","delay":"%s"}`, i%2, delay)), 201)
	}
	for {
		v := r.want(r.do("GET", "/v1/forecast", ""), 200)
		counts := v["counts"].([]any)
		if v["ready"] == 0.0 {
			continue // it is due in this very millisecond
		}
		if len(counts) != 60 || v["step"] != "1m" || counts[1] != 2.0 || v["later"] != 1.0 || v["ready"] != 1.0 || v["complete"] != true {
			t.Errorf("forecast %v", v)
		}
		break
	}
	for query, want := range map[string]string{
		"window=4h&step=1h":                       "[2 0 1 0] 0 1 1h",
		"window=4h&step=1h&topic=t0":              "[1 0 1 0] 0 0 1h",
		"window=14400000&step=3600000&topic=none": "[0 0 0 0] 0 0 1h",
		"window=1s&step=1s":                       "[0] 3 1 1s",
		"window=2m&step=50s":                      "[0 2 0] 1 1 50s",
		"window=3660d&step=3660d":                 "[3] 0 1 3660d",
	} {
		v := r.want(r.do("GET", "/v1/forecast?"+query, ""), 200)
		if got := fmt.Sprintf("%v %v %v %v", v["counts"], v["later"], v["ready"], v["step"]); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	j := r.want(r.do("GET", "/v1/forecast?window=1h", ""), 200)["judgement"].(map[string]any)
	if j["text"] != "No rate has been shown yet, so nothing is judged." || j["rate"] != 0.0 || j["precision"] != "1m" || fmt.Sprint(j["peaks"]) != "[]" {
		t.Errorf("the judgement is %v", j)
	}
	at := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	judged := tasks.Foresight{Rate: tasks.ShownRate{Delivered: 90, At: at}, Peaks: []tasks.Peak{{At: at, Tasks: 300, Through: at.Add(200 * time.Second), Wait: time.Minute, Spread: 4 * time.Minute}, {}}}
	text, err := json.Marshal(wireJudgement(&judged))
	if want := `"rate":1.5,"rate_at":"2026-11-30T00:00:00.000Z"`; err != nil || !strings.Contains(string(text), want) || strings.Count(string(text), `"spread":`) != 1 {
		t.Errorf("%s, %v", text, err)
	}
	v := r.want(r.do("GET", "/v1/forecast?window=10m", ""), 200)
	if v["step"] != "10s" || len(v["counts"].([]any)) != 60 {
		t.Errorf("without a step: %v", v)
	}
}
