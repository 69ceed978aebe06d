package commandline

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// A Command is an entry of the table of commands.
type Command struct {
	Name   string
	Help   string
	Detail string // more than fits on a line
	Group  string // the heading under which it and all commands below it are listed

	Below   []*Command
	Default string // which of Below is meant where a line names none; "": it must name one

	Target any // points to the struct of its arguments and flags; nil if there are commands below

	Args, Flags []*Param // read from Target by New

	parent *Command
}

// New completes a table from the structs of its commands. Flags have variables that begin with the
// prefix.
func New(root *Command, prefix string) *Command {
	if root.Target != nil {
		root.read(reflect.ValueOf(root.Target).Elem(), prefix)
	}
	for _, c := range root.Below {
		c.parent = root
		if c.Group == "" {
			c.Group = root.Group
		}
		New(c, prefix)
	}
	return root
}

// read adds the fields of a struct to the arguments and flags.
func (c *Command) read(s reflect.Value, prefix string) {
	for i := range s.NumField() {
		field := s.Type().Field(i)
		switch {
		case field.Anonymous && field.Type.Kind() == reflect.Struct:
			c.read(s.Field(i), prefix)
			continue
		case !field.IsExported():
			continue
		}
		p := newParam(&field, s.Field(i))
		if _, isArg := field.Tag.Lookup("arg"); isArg {
			_, optional := field.Tag.Lookup("optional")
			p.Required = !optional
			c.Args = append(c.Args, p)
			continue
		}
		if _, own := field.Tag.Lookup("env"); !own {
			p.Env = prefix + strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_"))
		}
		c.Flags = append(c.Flags, p)
	}
}

// Path is the command as it is typed.
func (c *Command) Path() string {
	if c.parent == nil {
		return c.Name
	}
	return c.parent.Path() + " " + c.Name
}

// Leaves returns the commands that run, in the order of the table.
func (c *Command) Leaves() (all []*Command) {
	if c.Target != nil {
		return []*Command{c}
	}
	for _, child := range c.Below {
		all = append(all, child.Leaves()...)
	}
	return all
}

// Flag returns the flag of a name, nil if there is none.
func (c *Command) Flag(name string) *Param {
	if i := slices.IndexFunc(c.Flags, func(p *Param) bool { return p.Name == name }); i >= 0 {
		return c.Flags[i]
	}
	return nil
}

// Named returns the command of a name right below, nil if there is none.
func (c *Command) Named(name string) *Command {
	if i := slices.IndexFunc(c.Below, func(c *Command) bool { return c.Name == name }); i >= 0 {
		return c.Below[i]
	}
	return nil
}

// words finds the ends of words in the name of a field, as in MaxPending and TLSCert.
var words = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

func hyphenated(field string) string {
	return strings.ToLower(words.ReplaceAllString(field, "$1$3-$2$4"))
}
