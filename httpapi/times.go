package httpapi

import (
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/internal/latency"
	"github.com/lapsehq/lapse/tasks"
)

// times count how long requests took, by the route that they matched. The zero key is that of all
// requests that match none. It does not change once the routes are built.
type times map[routeKey]*statusTimes

// statusTimes count by the class of the answer's status: 1xx first.
type statusTimes [5]latency.Histogram

// newTimes returns times for the routes of a router.
func newTimes(routes gin.RoutesInfo) times {
	t := times{routeKey{}: {}}
	for _, r := range routes {
		t[routeKey{r.Method, r.Path}] = &statusTimes{}
	}
	return t
}

// observe counts a request that was answered.
func (t times) observe(c *gin.Context, took time.Duration) {
	of := t[routeKey{c.Request.Method, c.FullPath()}]
	if of == nil {
		of = t[routeKey{}]
	}
	if class := c.Writer.Status()/100 - 1; class >= 0 && class < len(of) {
		of[class].Observe(took, 1)
	}
}

// EachRoute calls visit with how long requests took since the start, from the end of their header
// to the end of their answer, by method and route as in the OpenAPI document, such as GET and
// /v1/tasks/{id}, and by class of status, such as 2xx. Requests that match no route have the method
// other and the route none. The times of requests that wait (reserve) or are streamed (events)
// include that. Combinations that no request has had are left out. It is of the servers of
// HTTPServer and HealthServer together.
func (s *Server) EachRoute(visit func(method, route, status string, took tasks.Latency)) {
	for key, of := range s.times {
		method, route := key.method, routeText(key.path)
		if key == (routeKey{}) {
			method, route = "other", "none"
		}
		for class := range of {
			if took := of[class].Counts(); took.Total() > 0 {
				visit(method, route, statusClasses[class], took)
			}
		}
	}
}

var statusClasses = [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}

// routeText writes a route of gin as the OpenAPI document does.
func routeText(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if name, is := strings.CutPrefix(p, ":"); is {
			parts[i] = "{" + name + "}"
		}
	}
	return strings.Join(parts, "/")
}
