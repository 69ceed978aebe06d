package httpapi

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
)

// Reserve describes a request of a receiver.
type Reserve struct {
	Max   int  `json:"max,omitempty" minimum:"1" maximum:"1000" doc:"The most tasks of the answer, which ends at 4 MiB as well. Default 1."`
	Wait  span `json:"wait,omitempty" doc:"How long to wait for the first task, up to 60s. Left out: no wait."`
	Lease span `json:"lease,omitempty" doc:"How long the deliveries may stay unsettled, 1s to 24h. Left out: the topic's lease."`
}

// Reserved is the answer to a receiver.
type Reserved struct {
	Tasks []ReservedTask `json:"tasks" nullable:"false" doc:"Oldest deadline first. Empty if nothing was ready in time."`
}

// ReservedTask is one attempt to deliver a task. It belongs to the caller until its lease ends, by
// the server's clock.
type ReservedTask struct {
	Task
	Receipt    string `json:"receipt" doc:"Settles this delivery, and no other."`
	LeaseUntil string `json:"lease_until" format:"date-time" doc:"Unsettled by then, the attempt has failed."`
}

type topicInput struct {
	request
	Topic string `path:"topic" doc:"Name of the topic."`
}

// reserve answers POST /v1/topics/{topic}/reserve.
func (s *Server) reserve(ctx context.Context, in *topicInput) (*huma.StreamResponse, error) {
	body, err := optionalBody(in.gin)
	if err != nil {
		return nil, err
	}
	number := 1
	var wait, lease time.Duration
	for key := range body.object("") {
		switch string(key) {
		case "max":
			number = body.integer("max", 1, tasks.MaxReserve)
		case "wait":
			wait = body.span("wait", 0, tasks.MaxWait)
		case "lease":
			lease = body.span("lease", tasks.MinLease, tasks.MaxLease)
		default:
			body.unknown(key)
		}
	}
	if err := body.done(); err != nil {
		return nil, err
	}
	// A poll ends with the server, and with the rights of the caller, too. A caller that may still
	// ask then gets an empty answer, and asks again, here or at another node.
	poll, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	caller := callerOf(in.gin)
	if caller != nil {
		defer context.AfterFunc(caller.Life(), cancel)()
		poll = tasks.WithReceiver(poll, caller.Name)
	}
	full := ""
	if wait > 0 {
		if full = s.waits.Begin(caller); full == "" {
			defer s.waits.End(caller)
		} else {
			wait = 0 // tasks that are ready need no place
		}
	}
	deliveries, err := s.scheduler.Reserve(poll, in.Topic, number, wait, lease)
	if ctx.Err() != nil {
		s.scheduler.Return(deliveries)
		return nil, closing.with("the caller has gone")
	}
	if caller != nil && caller.Withdrawn() {
		if _, refusal := s.admit(in.gin); refusal != nil {
			s.scheduler.Return(deliveries)
			return nil, refusal
		}
	}
	size := int64(0)
	for i := range deliveries {
		size += sizeOf(&deliveries[i].Task)
	}
	if full := answerOf(in.gin).take(size); full != nil {
		s.scheduler.Return(deliveries)
		return nil, full
	}
	if err != nil && poll.Err() == nil {
		return nil, err
	}
	if full != "" && len(deliveries) == 0 {
		return nil, s.refuse(refusedPoll, overloaded.with(full))
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		if err := writeReserved(humagin.Unwrap(ctx), deliveries); err != nil {
			s.scheduler.Return(deliveries)
			s.log.Debug("reserved tasks were given back", "topic", in.Topic, "tasks", len(deliveries), "error", err)
		}
	}}, nil
}

// writeReserved writes the answer through to the connection, so that an error means that the caller
// did not get it.
func writeReserved(c *gin.Context, deliveries []tasks.Delivery) error {
	answer := Reserved{Tasks: make([]ReservedTask, len(deliveries))}
	for i := range deliveries {
		d := &deliveries[i]
		answer.Tasks[i] = ReservedTask{wireTask(&d.Task, seesAll(c)), d.Receipt(), formatInstant(d.LeaseUntil)}
	}
	var text bytes.Buffer
	if err := marshal(&text, answer); err != nil {
		return err
	}
	header := c.Writer.Header()
	header.Set("Content-Type", mediaJSON)
	header.Set("Content-Length", strconv.Itoa(text.Len()))
	c.Status(http.StatusOK)
	if _, err := c.Writer.Write(text.Bytes()); err != nil {
		return err
	}
	if len(deliveries) == 0 {
		return nil
	}
	return http.NewResponseController(connection(c)).Flush() // gin's own Flush hides the error
}
