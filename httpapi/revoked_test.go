package httpapi

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// A request whose body is still coming when its token loses rights does nothing, on each route with
// a body: the rights that count are those of the time when the body is there.
func TestRightsEndWhileABodyIsRead(t *testing.T) {
	t.Parallel()
	narrow := tokenOf("caller", edge.ScopeSchedule, edge.ScopeReceive)
	narrow.Topics = []string{"other"}
	wide := tokenOf("caller", edge.Scopes...)
	for name, now := range map[string]struct {
		token  []edge.Token
		status int
	}{"removed": {nil, 401}, "narrowed": {[]edge.Token{narrow}, 403}, "widened": {[]edge.Token{wide}, 403}} {
		for route, body := range map[string]string{
			"POST /v1/tasks":            `{"topic":"t","delay":"1h"}`,
			"PUT /v1/tasks/b":           `{"topic":"t","delay":"1h"}`,
			"PATCH /v1/tasks/a":         `{"delay":"2h"}`,
			"POST /v1/tasks/batch":      `[{"topic":"t","delay":"1h"}]`,
			"POST /v1/tasks/actions":    `{"action":"cancel","filter":{"topic":"t"}}`,
			"POST /v1/topics/t/reserve": `{}`,
			"PUT /v1/topics/t":          `{"delivery":{"kind":"pull"},"retry":{"max_attempts":3}}`,
		} {
			t.Run(name+" "+route, func(t *testing.T) {
				admin, caller := tokenOf("admin", edge.ScopeAdmin), tokenOf("caller", edge.ScopeSchedule, edge.ScopeReceive, edge.ScopeAdmin)
				r := newRigWith(t, tasks.Config{}, Config{Callers: callersOf(admin, caller)})
				for _, q := range []tasks.Request{{ID: "a", Topic: "t", Delay: time.Hour}, {ID: "ready", Topic: "t", Due: time.Now()}} {
					if _, err := r.scheduler.Schedule(t.Context(), q); err != nil {
						t.Fatal(err)
					}
				}
				method, path, _ := strings.Cut(route, " ")
				rest, slow := io.Pipe()
				q, err := http.NewRequestWithContext(t.Context(), method, r.url+path, rest)
				if err != nil {
					t.Fatal(err)
				}
				q.Header.Set("Authorization", "Bearer secret-caller")
				q.Header.Set("Content-Type", mediaJSON)
				go func() {
					_, _ = io.WriteString(slow, body[:1])
					tick := time.NewTicker(time.Millisecond)
					defer tick.Stop()
					for reads, _ := r.api.bodies.Used(); reads == 0; reads, _ = r.api.bodies.Used() {
						<-tick.C
					}
					if err := r.api.callers.Set(append(now.token, admin)); err != nil {
						t.Error(err)
					}
					_, _ = io.WriteString(slow, body[1:])
					slow.Close()
				}()
				if a := r.send(q); a.status != now.status {
					t.Errorf("it is answered %d %s", a.status, a.body)
				}
				if after := r.scheduler.Stats().Total; after.Pending+after.Ready != 2 || after.Scheduled != 2 {
					t.Errorf("of two tasks there are %+v", after)
				}
			})
		}
	}
}
