package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
)

// Purged reports what a purge has done.
type Purged struct {
	Cancelled  int `json:"cancelled" doc:"Tasks that are never delivered (again)."`
	Delivering int `json:"delivering" doc:"Tasks that are being delivered. They are not changed."`
}

// purge answers DELETE /v1/topics/{topic}/tasks.
func (s *Server) purge(ctx context.Context, in *topicInput) (*reply[Purged], error) {
	defer withoutDeadline(in.gin)()
	p, err := s.scheduler.Purge(ctx, in.Topic)
	s.record(in.gin, tasks.AuditEntry{Verb: "purge", Topic: in.Topic, Count: int64(p.Cancelled)}, err)
	if err != nil {
		return nil, withDone(err, p.Cancelled)
	}
	return &reply[Purged]{Purged(p)}, nil
}

// withoutDeadline lets a request that is done in pieces take as long as it makes progress: each
// piece has a limit of its own. The function that it returns restores the usual deadline for the
// answer.
func withoutDeadline(c *gin.Context) (answer func()) {
	timer := http.NewResponseController(connection(c))
	// An error means that the connection has no deadlines.
	_ = timer.SetWriteDeadline(time.Time{})
	return func() { answerOf(c).last = time.Now().Add(answerTimeout) }
}
