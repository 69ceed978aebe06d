package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/goccy/go-json"
)

// ListDead returns a page of the dead tasks of a topic, the longest dead first. Of the
// query, State is not used.
//
// Errors: ErrInvalid, ErrUnavailable, ErrUnreachable.
func (c *Client) ListDead(ctx context.Context, query Query) (*Page, error) {
	path, err := pathOf("/v1/topics/", "topic", query.Topic)
	if err != nil {
		return nil, err
	}
	return c.page(ctx, path+"/dead", Query{Limit: query.Limit, Cursor: query.Cursor})
}

// AllDead goes through all dead tasks of a topic, page by page. It ends after the first
// error.
func (c *Client) AllDead(ctx context.Context, query Query) iter.Seq2[*Task, error] {
	return pages(ctx, query, c.ListDead)
}

// RequeueDead brings dead tasks of a topic back, 1 to 10,000 ids. They are due at once and
// have all their attempts again. Ids that are not dead are passed over. It returns how many
// came back.
//
// Errors: ErrInvalid, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrUnreachable. Some may
// have come back before the error; repeating the call does the rest.
func (c *Client) RequeueDead(ctx context.Context, topic string, ids ...string) (int, error) {
	return c.requeue(ctx, topic, chosen{IDs: ids})
}

// RequeueAllDead brings all dead tasks of a topic back. See RequeueDead.
func (c *Client) RequeueAllDead(ctx context.Context, topic string) (int, error) {
	return c.requeue(ctx, topic, chosen{All: true})
}

// DeleteDead deletes dead tasks of a topic, 1 to 10,000 ids. Ids that are not dead are
// passed over. Errors: those of RequeueDead.
func (c *Client) DeleteDead(ctx context.Context, topic string, ids ...string) error {
	return c.onDead(ctx, call{method: http.MethodDelete, effect: same}, topic, "/dead", chosen{IDs: ids}, nil)
}

// DeleteAllDead deletes all dead tasks of a topic. Errors: those of RequeueDead.
func (c *Client) DeleteAllDead(ctx context.Context, topic string) error {
	// Again it would reach those that have died since.
	return c.onDead(ctx, call{method: http.MethodDelete, effect: again}, topic, "/dead", chosen{All: true}, nil)
}

// chosen are dead tasks: some, or all. No ids are none, and refused by the server: a list
// that turned out empty must not mean all.
type chosen struct {
	IDs []string `json:"ids,omitempty"`
	All bool     `json:"all,omitempty"`
}

func (c *Client) requeue(ctx context.Context, topic string, which chosen) (int, error) {
	var answer struct {
		Requeued int `json:"requeued"`
	}
	err := c.onDead(ctx, call{method: http.MethodPost, effect: again}, topic, "/dead/requeue", which, &answer)
	return answer.Requeued, err
}

func (c *Client) onDead(ctx context.Context, q call, topic, rest string, which chosen, answer any) error {
	path, err := pathOf("/v1/topics/", "topic", topic)
	if err != nil {
		return err
	}
	q.path, q.extra = path+rest, wholeTopic
	if q.body, err = json.Marshal(which); err != nil {
		return err
	}
	_, err = c.do(ctx, q, answer)
	return err
}
