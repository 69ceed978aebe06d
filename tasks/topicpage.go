package tasks

import (
	"github.com/lapsehq/lapse/tasks/task"
)

// ListTopics returns a page of the topics that Topics returns. Pages are no snapshot: a
// topic that comes or goes meanwhile may be missing. FleetTopics returns those of all nodes.
// Errors: ErrInvalid.
func (s *Scheduler) ListTopics(q TopicQuery) (TopicPage, error) {
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
		f.Add("limit", "must be 1 to 1000")
	}
	if q.Cursor != "" && !task.ValidName(q.Cursor) {
		f.Add("cursor", "must be the next_cursor of the page before")
	}
	if q.Limit == 0 {
		q.Limit = MaxTopicPage
	}
	return q, f.Err()
}
