package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"

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
	values map[string]any // by flag name: a string, or a list of them
	topics map[string]tasks.TopicSettings
	faults *faults
}

// topicInFile is a topic in the file, with the names that the HTTP API uses.
type topicInFile struct {
	Retry struct {
		MaxAttempts int           `yaml:"max_attempts"`
		MinBackoff  time.Duration `yaml:"min_backoff"`
		MaxBackoff  time.Duration `yaml:"max_backoff"`
	} `yaml:"retry"`
	Lease        time.Duration `yaml:"lease"`
	Concurrency  int           `yaml:"concurrency"`
	CountCrashes bool          `yaml:"count_crashes"`
	Paused       bool          `yaml:"paused"`
}

// load reads the file and returns itself as the source of flags.
func (c *configFile) load(r io.Reader) (kong.Resolver, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var all map[string]any
	if err := yaml.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	if topics, ok := all["topics"]; ok {
		if err := c.loadTopics(topics); err != nil {
			return nil, fmt.Errorf("topics: %w", err)
		}
		delete(all, "topics")
	}
	c.values = map[string]any{}
	if err := c.flatten("", all); err != nil {
		return nil, err
	}
	return c, nil
}

// flatten turns nested names into flag names: sweep.every into sweep-every.
func (c *configFile) flatten(prefix string, nested map[string]any) error {
	for key, v := range nested {
		name := prefix + strings.ReplaceAll(key, "_", "-")
		switch v := v.(type) {
		case nil: // a name without a value: not set
		case map[string]any:
			if err := c.flatten(name+"-", v); err != nil {
				return err
			}
		case []any:
			list := make([]any, len(v))
			for i, element := range v {
				switch element.(type) {
				case nil, []any, map[string]any:
					return fmt.Errorf("%s[%d]: want a plain value", name, i)
				}
				list[i] = fmt.Sprint(element)
			}
			if err := c.set(name, list); err != nil {
				return err
			}
		default:
			if err := c.set(name, fmt.Sprint(v)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *configFile) set(name string, v any) error {
	if _, twice := c.values[name]; twice {
		return fmt.Errorf("%s: set twice", name)
	}
	c.values[name] = v
	return nil
}

// loadTopics decodes strictly: a misspelt setting must not go unnoticed.
func (c *configFile) loadTopics(section any) error {
	text, err := yaml.Marshal(section)
	if err != nil {
		return err
	}
	var topics map[string]topicInFile
	if err := yaml.UnmarshalWithOptions(text, &topics, yaml.Strict()); err != nil {
		return errors.New(yaml.FormatError(err, false, false))
	}
	c.topics = make(map[string]tasks.TopicSettings, len(topics))
	for name, t := range topics {
		c.topics[name] = tasks.TopicSettings{
			Retry:        tasks.Retry(t.Retry),
			Lease:        t.Lease,
			Concurrency:  t.Concurrency,
			CountCrashes: t.CountCrashes,
			Paused:       t.Paused,
		}
	}
	return nil
}

// Validate notes every name in the file that is no setting, and every list for one
// that takes a single value.
func (c *configFile) Validate(app *kong.Application) error {
	known, takesList := map[string]bool{}, map[string]bool{}
	for _, command := range app.Children {
		for _, flag := range command.Flags {
			known[flag.Name], takesList[flag.Name] = flag.Name != "config", flag.IsSlice()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.values)) {
		_, list := c.values[name].([]any)
		switch {
		case !known[name]:
			c.faults.add("%s in the file is no setting", strings.ReplaceAll(name, "-", "_"))
		case list && !takesList[name]:
			c.faults.add("%s: a list is not expected here", name)
			delete(c.values, name)
		}
	}
	return nil
}

// Resolve gives kong the file's value for a flag that is not on the command
// line. Kong asks the environment before the file and lets the last one win,
// so the file stays silent where the environment has spoken.
func (c *configFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, name := range flag.Envs {
		if _, set := os.LookupEnv(name); set {
			return nil, nil
		}
	}
	if v, ok := c.values[flag.Name]; ok {
		return v, nil
	}
	return nil, nil
}
