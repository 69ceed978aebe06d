package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/lapsehq/lapse/cli/internal/commandline"
	"github.com/lapsehq/lapse/tasks"
)

// A configFile is the YAML file of --config: a value for each flag of serve,
// under the flag's name with underscores or, as in
//
//	sweep:
//	  every: 500ms
//
// with its parts nested, and the settings of topics under "topics".
type configFile struct {
	name   string
	values map[string]any // by flag name: a string or a []string
	topics map[string]tasks.TopicSettings
	lines  map[string]int    // by flag name; of topics and what they hold by path
	texts  map[string]string // likewise: the text of each value that is no list or mapping
	faults *faults
}

// notSettings are flags of serve and doctor that select actions, not settings.
var notSettings = map[string]bool{"config": true, "print-config": true, "help": true, "json": true}

// read reads the file that serve's flag --config names, if it does, and gives the other flags its
// values: those of the line and of the environment win.
func (c *configFile) read(serve *commandline.Command) error {
	config := serve.Flag("config").Given()
	if config == "" {
		return nil
	}
	config = fromHome(config)
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	c.name = config
	if err := c.load(text); err != nil {
		return err
	}
	c.give(serve)
	return nil
}

// fromHome replaces ~ at the beginning of a path.
func fromHome(path string) string {
	if rest, below := strings.CutPrefix(path, "~/"); below {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}

// load reads the text of the file.
func (c *configFile) load(text []byte) error {
	c.values, c.lines, c.texts = map[string]any{}, map[string]int{}, map[string]string{}
	document, err := parser.ParseBytes(text, 0)
	if err != nil {
		return c.fileError(err)
	}
	if len(document.Docs) > 1 {
		return fmt.Errorf("%s: there is more than one document", c.name)
	}
	var all map[string]any
	if err := yaml.Unmarshal(text, &all); err != nil {
		return c.fileError(err)
	}
	for _, doc := range document.Docs {
		c.locate("", doc.Body)
		if topics := member(doc.Body, "topics"); topics != nil {
			if err := c.loadTopics(topics); err != nil {
				return c.fileError(err)
			}
		}
	}
	delete(all, "topics")
	return c.flatten("", all)
}

// fileError puts the place of an error in front, as compilers do.
func (c *configFile) fileError(err error) error {
	if e := yaml.Error(nil); errors.As(err, &e) && e.GetToken() != nil {
		return fmt.Errorf("%s:%d: %s", c.name, e.GetToken().Position.Line, e.GetMessage())
	}
	return fmt.Errorf("%s: %w", c.name, err)
}

// fields returns what a YAML node holds, if it is a mapping.
func fields(node ast.Node) []*ast.MappingValueNode {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

func member(node ast.Node, name string) ast.Node {
	for _, f := range fields(node) {
		if f.Key.GetToken().Value == name {
			return f.Value
		}
	}
	return nil
}

// locate records on which line each name stands.
func (c *configFile) locate(prefix string, node ast.Node) {
	for _, f := range fields(node) {
		name, separator := f.Key.GetToken().Value, "."
		if prefix == "" && name != "topics" || prefix != "" && !strings.HasPrefix(prefix, "topics.") {
			name, separator = strings.ReplaceAll(name, "_", "-"), "-"
		}
		value := f.Value
		switch v := value.(type) {
		case *ast.NullNode, *ast.AliasNode:
			continue // not set, or set by a flag or variable
		case *ast.AnchorNode:
			value = v.Value
		}
		c.lines[prefix+name] = f.Key.GetToken().Position.Line
		if scalar, ok := value.(ast.ScalarNode); ok {
			c.texts[prefix+name] = scalar.GetToken().Value
		}
		c.locate(prefix+name+separator, value)
	}
}

// place returns where a name stands, "" if it does not.
func (c *configFile) place(name string) string {
	if line, ok := c.lines[name]; ok {
		return fmt.Sprintf("%s:%d", c.name, line)
	}
	return ""
}

// flatten turns nested names into flag names: sweep.every into sweep-every.
func (c *configFile) flatten(prefix string, nested map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(nested)) {
		name := prefix + strings.ReplaceAll(key, "_", "-")
		if _, twice := c.values[name]; twice {
			c.faults.place(name, c.place(name))
			c.faults.add("%s: is set twice", name)
			continue
		}
		switch v := nested[key].(type) {
		case nil: // a name without a value: not set
		case map[string]any:
			if name == "resp-topics" {
				c.values[name] = pairs(v)
				continue
			}
			if err := c.flatten(name+"-", v); err != nil {
				return err
			}
		case []any:
			texts := make([]string, len(v))
			for i, element := range v {
				switch element.(type) {
				case nil, []any, map[string]any:
					return fmt.Errorf("%s: %s[%d]: want a plain value", c.place(name), name, i)
				}
				texts[i] = fmt.Sprint(element)
			}
			c.values[name] = texts
		default:
			c.values[name] = fmt.Sprint(v)
		}
	}
	return nil
}

// pairs returns a mapping in the form that flags have: NAME=VALUE.
func pairs(mapping map[string]any) (texts []string) {
	for _, key := range slices.Sorted(maps.Keys(mapping)) {
		texts = append(texts, fmt.Sprint(key, "=", mapping[key]))
	}
	return texts
}

// give gives the flags of serve what the file holds. It notes every name that is no setting, and
// every list for a setting that takes a single value.
func (c *configFile) give(serve *commandline.Command) {
	for _, name := range slices.Sorted(maps.Keys(c.values)) {
		flag := serve.Flag(name)
		list, many := c.values[name].([]string)
		if flag == nil || notSettings[name] {
			c.faults.place(name, c.place(name))
			c.faults.add("%s in the file is no setting", strings.ReplaceAll(name, "-", "_"))
			continue
		}
		if many && !flag.IsList() {
			c.faults.place(name, c.place(name))
			c.faults.add("%s: a list is not expected here", name)
			continue
		}
		if !many {
			list = []string{c.values[name].(string)}
		}
		if flag.Source == "" {
			c.faults.place(name, c.place(name))
			flag.Give(cmp.Or(c.place(name), c.name), list...)
		}
	}
}
