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

// RequeueDead brings dead tasks of a topic back, up to 10,000 ids; without ids all of
// them. They are due at once and have all their attempts again. Ids that are not dead are
// passed over. It returns how many came back.
//
// Errors: ErrInvalid, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrUnreachable. Some may
// have come back before the error; repeating the call does the rest.
func (c *Client) RequeueDead(ctx context.Context, topic string, ids ...string) (int, error) {
	var answer struct {
		Requeued int `json:"requeued"`
	}
	err := c.onDead(ctx, call{method: http.MethodPost, effect: again, extra: wholeTopic}, topic, "/dead/requeue", ids, &answer)
	return answer.Requeued, err
}

// DeleteDead deletes dead tasks of a topic, up to 10,000 ids; without ids all of them.
// Ids that are not dead are passed over. Errors: those of RequeueDead.
func (c *Client) DeleteDead(ctx context.Context, topic string, ids ...string) error {
	q := call{method: http.MethodDelete, effect: same, extra: wholeTopic}
	if len(ids) == 0 {
		q.effect = again // on those that have died since
	}
	return c.onDead(ctx, q, topic, "/dead", ids, nil)
}

func (c *Client) onDead(ctx context.Context, q call, topic, rest string, ids []string, answer any) error {
	path, err := pathOf("/v1/topics/", "topic", topic)
	if err != nil {
		return err
	}
	q.path = path + rest
	q.body, err = json.Marshal(struct {
		IDs []string `json:"ids,omitempty"`
		All bool     `json:"all,omitempty"`
	}{ids, len(ids) == 0})
	if err != nil {
		return err
	}
	_, err = c.do(ctx, q, answer)
	return err
}
