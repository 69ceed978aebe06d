package client

import (
	"context"
	"net/http"

	"github.com/goccy/go-json"
)

// Backup makes a backup of the server's embedded ledger, on the machine of the server and below its
// directory of backups. Without a name it is called after the time. It needs a token with the scope
// admin.
//
// Errors: ErrNoBackup, ErrInvalid, ErrUnauthorized, ErrOverloaded, ErrUnavailable, ErrUnknown,
// ErrUnreachable.
func (c *Client) Backup(ctx context.Context, name string) (*Backup, error) {
	body, err := json.Marshal(struct {
		Name string `json:"name,omitempty"`
	}{name})
	if err != nil {
		return nil, err
	}
	b := &Backup{}
	if _, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/backup", body: body, effect: again, extra: wholeTopic}, b); err != nil {
		return nil, err
	}
	return b, nil
}
