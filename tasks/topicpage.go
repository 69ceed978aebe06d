package tasks

import (
	"strings"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/task"
)

// ListTopics returns a page of the topics that Topics returns. Pages are no snapshot: a
// topic that comes or goes meanwhile may be missing. Errors: ErrInvalid.
func (s *Scheduler) ListTopics(q TopicQuery) (TopicPage, error) {
	var f task.Faults
	if q.Limit < 0 || q.Limit > MaxTopicPage {
		f.Add("limit", "must be 1 to 1000")
	}
	if q.Cursor != "" && !task.ValidName(q.Cursor) {
		f.Add("cursor", "must be the next_cursor of the page before")
	}
	if err := f.Err(); err != nil {
		return TopicPage{}, err
	}
	if q.Limit == 0 {
		q.Limit = MaxTopicPage
	}
	first := cluster.Smallest[string]{Limit: q.Limit + 1, Compare: strings.Compare}
	for _, name := range s.cluster.Figures.Names.Do(s.engine.TopicNames) {
		if name > q.Cursor && (q.Allows == nil || q.Allows(name)) {
			first.Add(name)
		}
	}
	names := first.Sorted()
	page := s.engine.DescribeSome(names[:min(len(names), q.Limit)])
	if page.NextCursor == "" && len(names) > q.Limit {
		page.NextCursor = names[q.Limit-1]
	}
	return page, nil
}
