package tasks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// MaxAuditPage is how many entries an AuditPage has at most.
const MaxAuditPage = task.MaxAuditPage

// Record keeps an entry of the log of actions with the ledger, within seconds, for a month. ID, At
// and Node are filled in. Calls of one act whose entries are Partial make one entry. It waits for
// nothing, and fails nothing: an entry that the ledger does not take is lost in the end, see
// Stats.PastDropped. It reports false if this node has kept as many of this hour as it may. A
// program that embeds Lapse may record its own acts; the scheduler records none by itself.
func (s Admin) Record(e AuditEntry) bool { return s.cluster.Past.Record(e) }

// Audit returns a page of the log of actions, of all nodes that share the ledger, the latest first.
// What another node has recorded is there after a second or so. Partial says why some are
// missing, if there are more of a time than the ledger reads. Under a Grant that names topics,
// only entries of these are returned, and pages may be short.
//
// Errors: ErrInvalid, which names from, limit or topic; ErrNotGranted; ErrUnavailable if the ledger
// cannot be read.
func (s Admin) Audit(ctx context.Context, q AuditQuery) (AuditPage, error) {
	q, err := q.Checked(s.engine.Config.Clock())
	if err != nil {
		return AuditPage{}, err
	}
	if q.Topic != "" {
		if err := engine.Granted(ctx, q.Topic); err != nil {
			return AuditPage{}, err
		}
	}
	page, err := s.cluster.Audit(ctx, q)
	if errors.Is(err, recovery.ErrArchiveFull) {
		page.Partial, err = err, nil
	}
	if err != nil {
		return AuditPage{}, fmt.Errorf("%w: the log of actions: %w", ErrUnavailable, err)
	}
	if g := GrantOf(ctx); g != nil && len(g.Topics) > 0 {
		kept := page.Entries[:0]
		for _, e := range page.Entries {
			if e.Topic != "" && g.Allows(e.Topic) {
				kept = append(kept, e)
			}
		}
		page.Entries = kept
	}
	return page, nil
}

// FindAct returns an entry of the log of actions by its ID, which has its time. What another node
// has recorded is found after a second or so.
//
// Errors: ErrNoAct, also of an entry that the Grant leaves out; ErrUnavailable, also if the ledger
// has more entries of that time than it reads.
func (s Admin) FindAct(ctx context.Context, id string) (AuditEntry, error) {
	text, _, _ := strings.Cut(id, "-")
	ms, err := strconv.ParseInt(text, 36, 64)
	if err != nil || ms < 0 || ms > s.engine.Config.Clock().Add(MaxAhead).UnixMilli() {
		return AuditEntry{}, ErrNoAct
	}
	at := time.UnixMilli(ms)
	page, err := s.Audit(ctx, AuditQuery{From: at, To: at.Add(time.Millisecond), Limit: MaxAuditPage})
	if err != nil {
		return AuditEntry{}, err
	}
	for i := range page.Entries {
		if page.Entries[i].ID == id {
			return page.Entries[i], nil
		}
	}
	if page.Partial != nil {
		return AuditEntry{}, fmt.Errorf("%w: the log of actions: %w", ErrUnavailable, page.Partial)
	}
	return AuditEntry{}, ErrNoAct
}
