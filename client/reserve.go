package client

import (
	"context"
	"net/http"
	"time"

	"github.com/goccy/go-json"
)

// Reservation describes a request of a receiver.
type Reservation struct {
	// Max is how many tasks at most, 1 to 1,000. 0: one.
	Max int
	// Wait is how long to wait for the first one, up to 60 s. 0: no wait.
	Wait time.Duration
	// Lease is how long the deliveries may stay unsettled, 1 s to 24 h. 0: the topic's.
	Lease time.Duration
}

// Reserve takes tasks of a topic that are ready, the oldest deadline first, and waits until there
// is at least one. An empty result is no error. Tasks whose answer got lost are delivered again
// after their lease.
//
// Errors: ErrInvalid, ErrHandled, ErrUnavailable, ErrUnknown, ErrUnreachable.
func (c *Client) Reserve(ctx context.Context, topic string, r Reservation) ([]Delivery, error) {
	body, err := json.Marshal(struct {
		Max   int      `json:"max,omitempty"`
		Wait  Duration `json:"wait,omitempty"`
		Lease Duration `json:"lease,omitempty"`
	}{r.Max, Duration(r.Wait), Duration(r.Lease)})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Tasks []Delivery `json:"tasks"`
	}
	q := call{method: http.MethodPost, body: body, extra: max(r.Wait, 0), effect: again}
	err = c.onTopic(ctx, q, topic, "/reserve", &answer)
	return answer.Tasks, err
}
