package deadindex

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// Lost counts, by topic, tasks that the ledger has lost and memory cannot write again.
type Lost map[string]int

// toldTopics is how many of them a line of the log names.
const toldTopics = 10

// Tell logs them, if there are any.
func (l Lost) Tell(log *slog.Logger, node string) {
	if len(l) == 0 {
		return
	}
	total := 0
	var named []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		if total += l[name]; len(named) < toldTopics {
			named = append(named, fmt.Sprintf("%s: %d", name, l[name]))
		}
	}
	log.Error("the ledger has lost dead or finished tasks, and memory has no records of them; their ids are free",
		"node", node, "tasks", total, "topics", strings.Join(named, ", "), "more_topics", len(l)-len(named))
}
