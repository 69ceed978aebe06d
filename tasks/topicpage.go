package tasks

import (
	"slices"

	"github.com/lapsehq/lapse/internal/choice"
	"github.com/lapsehq/lapse/tasks/internal/ranking"
	"github.com/lapsehq/lapse/tasks/task"
)

// ListTopics returns a page of the topics that Topics returns. Pages are no snapshot: a
// topic that comes or goes meanwhile, or whose figures change, may be missing or listed twice.
// FleetTopics returns those of all nodes.
// Errors: ErrInvalid.
func (s Admin) ListTopics(q TopicQuery) (TopicPage, error) {
	q, err := checkedPage(q)
	if err != nil {
		return TopicPage{}, err
	}
	return s.cluster.TopicPage(q), nil
}

// checkedPage returns a query with its defaults. Error: ErrInvalid.
func checkedPage(q TopicQuery) (TopicQuery, error) {
	var f task.Faults
	if q.Limit < 0 || q.Limit > MaxTopicPage {
		f.Add("limit", "must be from 1 to 1000")
	}
	if q.Sort == "" && q.Search != "" {
		q.Sort = SortName
	}
	known := slices.Contains(task.TopicSorts, q.Sort)
	if q.Sort != "" && !known {
		f.Add("sort", "must be "+choice.Text(task.TopicSorts))
	}
	if len(q.Search) > MaxSearch {
		f.Add("search", "must have at most 128 bytes")
	}
	if q.Cursor != "" && q.Sort == "" && !task.ValidName(q.Cursor) || known && !ranking.CheckCursor(&q) {
		f.Add("cursor", "must be the next_cursor of the page before")
	}
	if q.Limit == 0 {
		q.Limit = MaxTopicPage
	}
	return q, f.Err()
}
