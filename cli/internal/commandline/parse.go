package commandline

import (
	"fmt"
	"slices"
	"strings"
)

// A Line is what a command line says.
type Line struct {
	Command *Command
	Help    bool // help is wanted: nothing else was checked
}

// A UsageError says what is wrong with a line.
type UsageError struct {
	Command *Command // as far as the line names one
	Err     error
}

// Error says also where help is.
func (e *UsageError) Error() string { return fmt.Sprintf("%v; see %s --help", e.Err, e.Command.Path()) }

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.Err }

// Parse reads the words after the program's name. The arguments and flags of the command have what
// the line gives. After --, no word is a flag. Error: a UsageError.
func (c *Command) Parse(words []string) (*Line, error) {
	p := parser{line: Line{Command: c}, left: words}
	for len(p.left) > 0 {
		word := p.left[0]
		p.left = p.left[1:]
		var err error
		switch {
		case p.onlyArgs || !isFlag(word):
			err = p.argument(word)
		case word == "--":
			p.onlyArgs = true
		case word == "-h" || word == "--help":
			p.line.Help = true
		default:
			err = p.flag(word)
		}
		if err != nil {
			return nil, &UsageError{p.line.Command, err}
		}
	}
	if p.line.Help {
		return &p.line, nil
	}
	p.descend()
	if err := p.missing(); err != nil {
		return nil, &UsageError{p.line.Command, err}
	}
	return &p.line, nil
}

type parser struct {
	line     Line
	left     []string
	args     int  // arguments of the command so far
	onlyArgs bool // the rest has no flags
}

// descend goes on to the command that is meant if none is named.
func (p *parser) descend() {
	if c := p.line.Command; c.Default != "" {
		p.line.Command = c.Named(c.Default)
	}
}

// argument takes the name of a command, or an argument.
func (p *parser) argument(word string) error {
	if child := p.line.Command.Named(word); child != nil {
		p.line.Command = child
		return nil
	}
	p.descend()
	c := p.line.Command
	switch {
	case p.args < len(c.Args) && !c.Args[p.args].IsList():
		c.Args[p.args].Give(argumentSource, word)
		p.args++
	case p.args < len(c.Args):
		c.Args[p.args].Source = argumentSource
		c.Args[p.args].given = append(c.Args[p.args].given, word)
	default:
		names := make([]string, len(c.Below))
		for i, child := range c.Below {
			names[i] = child.Name
		}
		return fmt.Errorf("unexpected argument %s%s", word, Suggest(word, names))
	}
	return nil
}

// flag takes a flag and its value.
func (p *parser) flag(word string) error {
	p.descend()
	c := p.line.Command
	name, value, hasValue := strings.Cut(strings.TrimPrefix(word, "--"), "=")
	f, negated := c.Flag(name), false
	if positive, no := strings.CutPrefix(name, "no-"); f == nil && no {
		if f = c.Flag(positive); f != nil && !f.Negatable {
			f = nil
		}
		negated = f != nil
	}
	switch {
	case f == nil:
		word, _, _ := strings.Cut(word, "=")
		return fmt.Errorf("unknown flag %s%s", word, Suggest(word, c.flagNames()))
	case hasValue:
	case f.IsBool():
		value = "true"
	case len(p.left) == 0 || p.left[0] == "--":
		return fmt.Errorf("--%s: must have a value", name)
	case isFlag(p.left[0]):
		return fmt.Errorf("--%s: must have a value, and %s looks like a flag; perhaps try --%s=%[2]s", name, p.left[0], name)
	default:
		value, p.left = p.left[0], p.left[1:]
	}
	if opposite, ok := map[string]string{"true": "false", "false": "true"}[value]; negated && ok {
		value = opposite
	}
	f.Source = "flag --" + f.Name
	f.given = append(f.given, value)
	return nil
}

// flagNames are the flags as they are typed.
func (c *Command) flagNames() []string {
	names := []string{"--help"}
	for _, f := range c.Flags {
		names = append(names, "--"+f.Name)
		if f.Negatable {
			names = append(names, "--no-"+f.Name)
		}
	}
	return names
}

// missing says what the line lacks.
func (p *parser) missing() error {
	c := p.line.Command
	if c.Target == nil {
		var names []string
		for _, child := range c.Below {
			names = append(names, fmt.Sprintf("%q", child.Name))
		}
		if len(names) > 5 {
			names = append(names[:5], "...")
		}
		return fmt.Errorf("expected one of %s", strings.Join(names, ", "))
	}
	for _, a := range c.Args {
		if a.Required && a.Source == "" {
			return fmt.Errorf("expected %q", argument(a))
		}
	}
	return nil
}

// Fill sets the fields of the command to what was given, or to their defaults. It tells collect of
// every value that is wrong, and goes on if that returns true. Error: a UsageError, also for flags
// that must be given.
func (l *Line) Fill(collect func(p *Param, err error) bool) error {
	c := l.Command
	var missing []string
	for _, p := range slices.Concat(c.Args, c.Flags) {
		if p.Required && p.Source == "" {
			missing = append(missing, "--"+p.Name+"="+p.placeholder())
		}
		if err := p.fill(); err != nil && !collect(p, err) {
			return &UsageError{c, fmt.Errorf("%s: %w", p.described(), err)}
		}
	}
	if missing != nil {
		return &UsageError{c, fmt.Errorf("missing flags: %s", strings.Join(missing, ", "))}
	}
	return nil
}

// described names what was given, and where if it is not on the line.
func (p *Param) described() string {
	switch {
	case p.Source == argumentSource:
		return argument(p)
	case p.isOnLine():
		return "--" + p.Name
	}
	return "--" + p.Name + " (" + p.Source + ")"
}

// isFlag reports whether a word is a flag, or means to be one. Negative numbers are none.
func isFlag(word string) bool {
	return len(word) > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9')
}
