package client

import (
	"context"
	"net/http"
	"time"

	"github.com/goccy/go-json"
)

// An Action is what Act does with each of many tasks.
type Action string

// The actions. RequeueAction and DeleteAction are for dead tasks and need a token with the scope
// admin, the others are for tasks that are not dead.
const (
	CancelAction  Action = "cancel"
	MoveAction    Action = "move"
	FireAction    Action = "fire"
	HoldAction    Action = "hold"
	ResumeAction  Action = "resume" // a query selects held tasks only
	RequeueAction Action = "requeue"
	DeleteAction  Action = "delete"
)

// Act asks for one thing to be done with many tasks: with those that are named, or with those that
// a query selects.
type Act struct {
	Action Action
	// IDs name the tasks, 1 to 1,000. nil: the query selects them.
	IDs []string
	// Query selects the tasks, by at least one of its fields; with RequeueAction and DeleteAction
	// by Topic, and State is not needed. At most Limit tasks are changed, 0 meaning 1,000. Cursor
	// is the NextCursor of the call before. Beside IDs only Cursor may be given.
	Query Query
	// Due is the new deadline, for MoveAction, and for RequeueAction, which makes tasks due now
	// without it.
	Due time.Time
	// Shift, for MoveAction in place of Due, is added to the deadline of each task and to its
	// next attempt. It may be negative. The first call moves nothing.
	Shift time.Duration
	// DryRun counts the tasks, up to 20,000 a call, and changes nothing.
	DryRun bool
}

// Act does one thing with up to 1,000 tasks. It is called with Query.Cursor set to NextCursor until
// that is empty. A call may find none although there are more. From the first call to the last each
// task is moved, fired or requeued once, also if a call is repeated with the same cursor.
//
// Errors: ErrInvalid, ErrUnauthorized, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrUnreachable.
// Some may have been changed before the error; repeating the call does the rest.
func (c *Client) Act(ctx context.Context, a Act) (*Acted, error) {
	if err := a.Query.checkNode(); err != nil {
		return nil, err
	}
	q := call{method: http.MethodPost, path: "/v1/tasks/actions", effect: again, extra: wholeTopic}
	switch a.Action {
	case CancelAction, MoveAction, HoldAction, ResumeAction:
		q.effect = same
	default:
		if a.Query.Cursor != "" || a.DryRun {
			q.effect = same
		}
	}
	w := wireAct{
		Action: a.Action, IDs: a.IDs, Due: instant(a.Due), Shift: Duration(a.Shift), DryRun: a.DryRun,
		Cursor: a.Query.Cursor, Limit: a.Query.Limit,
	}
	if a.IDs == nil {
		w.Filter = &wireFilter{
			a.Query.Topic, a.Query.Group, a.Query.State, a.Query.IDPrefix, a.Query.Error, a.Query.ErrorLike, a.Query.Reason,
			instant(a.Query.DueFrom), instant(a.Query.DueTo), instant(a.Query.DiedFrom), instant(a.Query.DiedTo),
		}
	}
	var err error
	if q.body, err = json.Marshal(w); err != nil {
		return nil, err
	}
	done := &Acted{}
	if _, err := c.do(ctx, q, done); err != nil {
		return nil, err
	}
	return done, nil
}

// A wireAct is an Act on the wire.
type wireAct struct {
	Action Action      `json:"action"`
	IDs    []string    `json:"ids,omitempty"`
	Filter *wireFilter `json:"filter,omitempty"`
	Due    *time.Time  `json:"due_at,omitempty"`
	Shift  Duration    `json:"shift,omitempty"`
	DryRun bool        `json:"dry_run,omitempty"`
	Cursor string      `json:"cursor,omitempty"`
	Limit  int         `json:"limit,omitempty"`
}

type wireFilter struct {
	Topic     string     `json:"topic,omitempty"`
	Group     string     `json:"group,omitempty"`
	State     State      `json:"state,omitempty"`
	IDPrefix  string     `json:"id_prefix,omitempty"`
	Error     string     `json:"error,omitempty"`
	ErrorLike string     `json:"error_like,omitempty"`
	Reason    Reason     `json:"reason,omitempty"`
	DueFrom   *time.Time `json:"due_from,omitempty"`
	DueTo     *time.Time `json:"due_to,omitempty"`
	DiedFrom  *time.Time `json:"died_from,omitempty"`
	DiedTo    *time.Time `json:"died_to,omitempty"`
}
