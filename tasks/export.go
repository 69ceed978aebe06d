package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/portable"
	"github.com/lapsehq/lapse/tasks/task"
)

// MaxExportCursor bounds ExportQuery.Cursor, in bytes.
const MaxExportCursor = cluster.MaxExportCursor

// Export returns a page of everything that the ledger has, at all nodes: settings of topics, tasks,
// dead tasks and finished ones that are kept. It is called with Cursor set to that of the page
// before, until there is none. A page may be empty although there are more. Any node of the ledger
// can be asked for the next page.
//
// A task that exists from the first page to the last is exported at least once, as it stood at some
// moment in between, whatever becomes of it meanwhile. One that changes may be exported twice.
//
// Errors: ErrInvalid, ErrReplaying, ErrUnavailable (also when dead tasks are requeued so often that
// the export cannot end), ErrClosed; with several nodes also ErrNodeAway and ErrOverloaded. After
// an error the same page can be asked for again.
func (s Admin) Export(ctx context.Context, q ExportQuery) (ExportPage, error) {
	if err := checkTopics(q.Topics); err != nil {
		return ExportPage{}, err
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	return s.cluster.ExportPage(ctx, q)
}

// checkTopics checks the patterns of an export or a scan.
func checkTopics(patterns []string) error {
	if len(patterns) > task.MaxExportTopics {
		return task.Invalid("topic", fmt.Sprintf("must be at most %d", task.MaxExportTopics))
	}
	for _, t := range patterns {
		if !task.ValidPattern(t) {
			return task.Invalid("topic", "must be a name, or the beginning of names and an asterisk")
		}
	}
	return nil
}

// Scan returns some of the tasks at all nodes that are neither dead nor finished, in the order of
// hashes of their ids. It is called with Cursor set to that of the page before, until that is 0. A
// page may be empty although there are more. Any node of the ledger can be asked for the next page.
// A task that exists from the first page to the last is returned at least once. For the first page
// a node puts its tasks in order, which it keeps for some minutes.
//
// Errors: as of Export, except that dead tasks which are requeued do not matter.
func (s Admin) Scan(ctx context.Context, q ScanQuery) (ScanPage, error) {
	if err := checkTopics(q.Topics); err != nil {
		return ScanPage{}, err
	}
	if q.Limit < 1 || q.Limit > task.MaxScan {
		return ScanPage{}, task.Invalid("limit", fmt.Sprintf("must be from 1 to %d", task.MaxScan))
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	return s.cluster.Scan(ctx, q)
}

// Import takes tasks of another ledger in, at most MaxBatch, with one wait for the ledger: each as
// it stood there, with its attempts, revision and fingerprint. It replaces no task. A task that is
// there already has a Result with Repeated: an import may be repeated as long as its tasks are
// there. Each task stands for itself and has its own Result, in order. A task that stands twice, as
// one that changed while it was exported, is imported as it stands first; the second is Repeated.
// Two tasks with one id are an error of the second. Results have the errors of ScheduleBatch;
// ErrExists if another task has the id.
//
// A task that was being delivered waits for its next attempt. Deadlines that have passed count as
// missed while no node held the task, see TopicSettings.Misfire. Imported tasks are never spooled.
//
// The error is for the import as a whole: ErrInvalid if it is too long; ErrUnavailable.
func (s Admin) Import(ctx context.Context, all []Exported) ([]Result, error) {
	if len(all) > MaxBatch {
		return nil, task.Invalid("tasks", fmt.Sprintf("must be at most %d", MaxBatch))
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	by, err := s.engine.Admission(ctx)
	if err != nil {
		return nil, err
	}
	b := &cluster.Batch{
		Cluster: s.cluster, By: by,
		Requests: make([]Request, len(all)), Records: make([][]byte, len(all)), Results: make([]Result, len(all)),
	}
	for i := range all {
		b.Requests[i] = Request{ID: all[i].ID, Topic: all[i].Topic}
	}
	todo := slices.DeleteFunc(b.Distinct(), func(i int) bool {
		b.Records[i], b.Results[i].Err = portable.Record(&all[i])
		return b.Results[i].Err != nil
	})
	b.Run(ctx, b.LeaveFinished(ctx, todo))
	answerTwice(all, b.Results)
	return b.Results, nil
}

// answerTwice gives a task that stands a second time in an import the result of the first one.
func answerTwice(all []Exported, results []Result) {
	first := make(map[string]int, len(all))
	for i := range all {
		x := &all[i]
		k, twice := first[x.ID]
		if !twice {
			first[x.ID] = i
		} else if o := &all[k]; x.Fingerprint == o.Fingerprint && x.Created.Equal(o.Created) {
			results[i] = results[k]
			results[i].Repeated = results[i].Err == nil
		}
	}
}

// ImportTopic stores the settings of a topic of another ledger, unless the topic has settings here
// and replace is false. Errors: ErrExists if it has; as of SetTopic; ErrNotGranted.
func (s Admin) ImportTopic(ctx context.Context, t ExportedTopic, replace bool) error {
	if err := engine.Granted(ctx, t.Name); err != nil {
		return err
	}
	revision := int64(0)
	if replace {
		revision = -1
	}
	_, err := s.engine.SetTopic(ctx, t.Name, t.Settings, revision)
	if errors.Is(err, ErrRevision) {
		return ErrExists
	}
	return err
}
