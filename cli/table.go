package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/client"
)

// table writes rows in aligned columns, the first row being the heads.
func table(w io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			cell = plain(cell)
			row[i] = cell
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", widths[i], cell)
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// block writes the properties of one thing under its name. Properties without a value are left out.
func block(w io.Writer, name string, pairs ...string) {
	fmt.Fprintln(w, plain(name))
	var rows [][]string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, []string{"  " + pairs[i], pairs[i+1]})
		}
	}
	table(w, rows)
}

// wayText says how a topic's tasks are delivered, and what keeps them from it.
func wayText(topic *client.TopicInfo) string {
	text := topic.Delivery.Kind
	switch {
	case topic.Undeliverable != "":
		text += ", impossible: " + topic.Undeliverable
	case topic.Paused:
		text += ", paused"
	case topic.Delivery.Kind == "pull" && len(topic.Missing) == 0 && topic.Counts.Receivers == 0:
		text += ", no receiver waits"
	}
	return text
}

// attemptTable is the story of the attempts of a task.
func attemptTable(w io.Writer, list []client.Attempt, now time.Time) {
	rows := [][]string{{"    #", "ENDED", "TOOK", "OUTCOME", "BY", "ERROR"}}
	for i := range list {
		a := &list[i]
		took := ""
		if a.Duration > 0 {
			took = a.Duration.String()
		}
		rows = append(rows, []string{fmt.Sprint("    ", a.Number), instantText(a.At, now), took, string(a.Outcome), a.By, short(a.Error, 80)})
	}
	table(w, rows)
}
