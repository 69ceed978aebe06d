package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"

	"github.com/goccy/go-json"
)

// ExportQuery selects what is exported.
type ExportQuery struct {
	// Topics are names, or beginnings of names and an asterisk, up to 100. Empty: all topics.
	Topics []string
	// Cursor is the NextCursor of the page before. Empty: the export begins.
	Cursor string
}

// ExportPage is a part of an export.
type ExportPage struct {
	// Lines are JSON objects, each ended by a newline. The first page begins with the line of the
	// type lapse_export, the last one ends with that of the type end.
	Lines []byte
	// NextCursor is for the page after this one; empty at the end.
	NextCursor string
	// Begins says that the tasks begin behind this page. If an earlier page has said so as
	// well, the server could not go on, for example because it was restarted: it begins anew
	// there, and what came in between is to be dropped. Who keeps it has tasks twice, which an
	// import accepts.
	Begins bool
	// Counts are those of the whole export. Zero unless the page is the last.
	Counts ExportCounts
}

// ExportCounts are what an export has, by the type of its lines. A task that changed while the
// export ran may count twice.
type ExportCounts struct {
	Topics   int `json:"topics"`
	Tasks    int `json:"tasks"`
	Dead     int `json:"dead"`
	Finished int `json:"finished"`
	// Unreadable counts records of a newer version, or damaged ones, which are not exported.
	Unreadable int `json:"unreadable"`
}

// Export returns a page of everything that the server's ledger has: topics, tasks, dead tasks and
// finished ones that are kept. A page may have no lines although there are more. It needs a token
// with the scope admin.
//
// Errors: ErrInvalid, ErrUnauthorized, ErrOverloaded, ErrUnavailable, ErrUnreachable. After an
// error the same page can be asked for again, also of another server of the fleet.
func (c *Client) Export(ctx context.Context, q ExportQuery) (*ExportPage, error) {
	values := url.Values{}
	for _, t := range q.Topics {
		values.Add("topic", t)
	}
	if q.Cursor != "" {
		values.Set("cursor", q.Cursor)
	}
	a, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/export", query: values, effect: reads, extra: wholeTopic}, nil)
	if err != nil {
		return nil, err
	}
	p := &ExportPage{Lines: a.body}
	last := a.body[bytes.LastIndexByte(bytes.TrimSuffix(a.body, []byte("\n")), '\n')+1:]
	var line struct {
		Type   string `json:"type"`
		Cursor string `json:"cursor"`
		Begins bool   `json:"begins"`
		ExportCounts
	}
	if err := json.Unmarshal(last, &line); err != nil {
		return nil, fmt.Errorf("the last line of a page of an export cannot be read: %w", err)
	}
	switch {
	case line.Type == "next" && line.Cursor != "":
		p.Lines, p.NextCursor, p.Begins = a.body[:len(a.body)-len(last)], line.Cursor, line.Begins
	case line.Type == "end":
		p.Counts = line.ExportCounts
	default:
		return nil, errors.New("a page of an export has neither a cursor nor an end")
	}
	return p, nil
}

// ExportPages yields the pages of an export from a query on. It ends after the first error.
func (c *Client) ExportPages(ctx context.Context, q ExportQuery) iter.Seq2[*ExportPage, error] {
	return func(yield func(*ExportPage, error) bool) {
		for {
			p, err := c.Export(ctx, q)
			if !yield(p, err) || err != nil {
				return
			}
			if q.Cursor = p.NextCursor; q.Cursor == "" {
				return
			}
		}
	}
}
