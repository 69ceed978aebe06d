package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/tasks/internal/portable"
	"github.com/lapsehq/lapse/tasks/task"
)

// A scan reads the first pass of an export, without its state: the cursor is a cell of the hashes
// of ids, and pages end where a cell ends.

// cellShift is how many bits of a place tell tasks of one cell apart. Cells are so small that two
// tasks share one by chance only, and their numbers are whole numbers in every language.
const cellShift = 16

// lastCell is the last cell there is.
const lastCell = 1<<(64-cellShift) - 1

// Scan returns a page of a scan. Errors: as of tasks.Scheduler.Scan.
func (s *Cluster) Scan(ctx context.Context, q task.ScanQuery) (page task.ScanPage, err error) {
	if q.Cursor > lastCell {
		return page, nil
	}
	ask := portable.Query{
		Pass: portable.InMemory, From: portable.BeforeCell(q.Cursor, cellShift), Topics: q.Topics,
		Grant: task.PatternsOf(ctx), Items: q.Limit + 1, Brief: true,
	}
	var items []portable.Item
	for {
		part, err := s.exportAll(ctx, ask)
		if err != nil {
			return page, err
		}
		items = append(items, part.Items...)
		if part.Last == nil {
			break
		}
		cell := part.Last.Place >> cellShift
		if part.Last.EndsCell(cellShift) {
			page.Cursor = cell + 1
			break
		}
		if cell > q.Cursor { // this cell is for the next page
			page.Cursor = cell
			items = slices.DeleteFunc(items, func(i portable.Item) bool { return i.Place>>cellShift >= cell })
			break
		}
		ask.From = *part.Last // one cell has more tasks than the page
	}
	if page.Cursor > lastCell {
		page.Cursor = 0
	}
	page.Tasks = make([]task.Exported, len(items))
	for i := range items {
		if page.Tasks[i], err = portable.Exported(items[i].ID, items[i].Record); err != nil {
			return task.ScanPage{}, fmt.Errorf("%w: the record of a task: %w", task.ErrUnavailable, err)
		}
	}
	return page, nil
}
