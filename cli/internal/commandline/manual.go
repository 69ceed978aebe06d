package commandline

import (
	"fmt"
	"io"
	"strings"
)

// WriteManual writes the page of all commands for man, with the source that its foot names. Flags
// of a group stand at the end, once. One that an earlier command has in the same words is only
// named.
func (c *Command) WriteManual(w io.Writer, source string) error {
	var b strings.Builder
	synopsis, paragraphs, _ := strings.Cut(c.Help, "\n\n")
	fmt.Fprintf(&b, ".TH %s 1 \"\" %q\n.nh\n.ad l\n.SH NAME\n%s \\- %s\n", strings.ToUpper(c.Name), source, c.Name, roff(strings.TrimSuffix(synopsis, ".")))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n.I command\n.RI [ arguments ]\n.RI [ flags ]\n", c.Name)
	if paragraphs != "" {
		fmt.Fprintf(&b, ".SH DESCRIPTION\n%s", paragraphsOf(paragraphs))
	}
	heading, told := "Commands", map[string]bool{}
	fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(heading))
	var groups []string
	grouped := map[string][][2]string{}
	for _, leaf := range c.Leaves() {
		if leaf.Group != "" && leaf.Group != heading {
			heading = leaf.Group
			fmt.Fprintf(&b, ".SH %s\n", roff(strings.ToUpper(heading)))
		}
		fmt.Fprintf(&b, ".SS %s\n%s", roff(leaf.usage()), paragraphsOf(leaf.Help+"\n\n"+leaf.Detail))
		for _, a := range leaf.Args {
			manualRow(&b, [2]string{argument(a), a.Help})
		}
		var others []string
		for _, f := range leaf.Flags {
			row := f.row("")
			switch first := !told[row[0]+row[1]]; {
			case first && f.Group != "":
				if grouped[f.Group] == nil {
					groups = append(groups, f.Group)
				}
				grouped[f.Group] = append(grouped[f.Group], row)
			case first:
				manualRow(&b, row)
			case f.Group == "":
				others = append(others, "--"+f.Name)
			}
			told[row[0]+row[1]] = true
		}
		if others != nil {
			fmt.Fprintf(&b, ".PP\nFlags as above: %s\n", roff(strings.Join(others, ", ")))
		}
	}
	for _, group := range groups {
		fmt.Fprintf(&b, ".SH %s\n", roff(strings.ToUpper(group)))
		for _, row := range grouped[group] {
			manualRow(&b, row)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// manualRow writes an argument or a flag with its help.
func manualRow(b *strings.Builder, row [2]string) {
	fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(row[0]), roff(row[1]))
}

// paragraphsOf writes a text whose paragraphs an empty line parts.
func paragraphsOf(text string) string {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if paragraph != "" {
			fmt.Fprintf(&b, ".PP\n%s\n", roff(paragraph))
		}
	}
	return b.String()
}

// roff writes a text as one line that has no requests.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
