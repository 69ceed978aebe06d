package commandline

import (
	"fmt"
	"io"
	"strings"
)

// columns is the width of help texts.
const columns = 80

// WriteHelp writes the help of the command.
func (c *Command) WriteHelp(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s\n", c.usage())
	for _, text := range []string{c.Help, c.Detail} {
		for paragraph := range strings.SplitSeq(text, "\n\n") {
			if paragraph != "" {
				fmt.Fprintf(&b, "\n%s\n", strings.Join(wrap(paragraph, columns), "\n"))
			}
		}
	}
	var rows [][2]string
	for _, a := range c.Args {
		rows = append(rows, [2]string{argument(a), a.Help})
	}
	section(&b, "Arguments:", rows)
	rows = [][2]string{{"-h, --help", "Show this help."}}
	var groups []string
	grouped := map[string][][2]string{}
	for _, f := range c.Flags {
		if f.Group == "" {
			rows = append(rows, f.row("    "))
			continue
		}
		if grouped[f.Group] == nil {
			groups = append(groups, f.Group)
		}
		grouped[f.Group] = append(grouped[f.Group], f.row(""))
	}
	section(&b, "Flags:", rows)
	for _, group := range groups {
		section(&b, group, grouped[group])
	}
	c.writeCommands(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// usage is a line of the command with what it takes.
func (c *Command) usage() string {
	text := c.Path()
	for _, f := range c.Flags {
		if f.Required {
			text += " --" + f.Name + "=" + f.placeholder()
		}
	}
	for _, a := range c.Args {
		text += " " + argument(a)
	}
	switch {
	case c.Target == nil:
		text += " <command>"
	case len(c.Flags) > 0:
		text += " [flags]"
	}
	return text
}

// writeCommands lists all commands below, under their headings.
func (c *Command) writeCommands(b *strings.Builder) {
	if c.Target != nil {
		return
	}
	var rows [][2]string
	heading := "Commands:"
	for _, leaf := range c.Leaves() {
		if leaf.Group != "" && leaf.Group != heading {
			section(b, heading, rows)
			heading, rows = leaf.Group, nil
		}
		path := leaf.Path()
		rows = append(rows, [2]string{path[strings.Index(path, " ")+1:], leaf.Help})
	}
	section(b, heading, rows)
	fmt.Fprintf(b, "\nRun \"%s <command> --help\" for more information on a command.\n", c.Path())
}

// row is a flag with its help.
func (p *Param) row(indent string) [2]string {
	name := indent + "--" + p.Name
	if p.Negatable {
		name = indent + "--[no-]" + p.Name
	}
	if !p.IsBool() {
		name += "=" + p.placeholder()
	}
	help := p.Help
	if p.Env != "" {
		dot := ""
		if strings.HasSuffix(help, ".") {
			dot = "."
		}
		help = strings.TrimSuffix(help, ".") + " ($" + p.Env + ")" + dot
	}
	return [2]string{name, help}
}

// placeholder stands for the value of a flag.
func (p *Param) placeholder() string {
	switch {
	case p.Placeholder != "" && p.IsList() && p.separator != "":
		return strings.TrimSuffix(p.Placeholder, ",...") + p.separator + "..."
	case p.Placeholder != "":
		return p.Placeholder
	case p.Default != "":
		return p.Default
	}
	return strings.ToUpper(p.Name)
}

// argument stands for an argument.
func argument(p *Param) string {
	text := "<" + p.Name + ">"
	if p.IsList() {
		text += " ..."
	}
	if !p.Required {
		text = "[" + text + "]"
	}
	return text
}

// section writes rows of two columns under a heading.
func section(b *strings.Builder, heading string, rows [][2]string) {
	const indent, gap, widest = 2, 4, 28
	if len(rows) == 0 {
		return
	}
	width := 0
	for _, row := range rows {
		if len(row[0]) <= widest {
			width = max(width, len(row[0]))
		}
	}
	fmt.Fprintf(b, "\n%s\n", heading)
	for _, row := range rows {
		left := row[0]
		if len(left) > widest {
			fmt.Fprintf(b, "%*s%s\n", indent, "", left)
			left = ""
		}
		for _, line := range wrap(row[1], columns-indent-width-gap) {
			fmt.Fprintf(b, "%*s%-*s%*s%s\n", indent, "", width, left, gap, "", line)
			left = ""
		}
	}
}

// wrap breaks a text into lines.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
