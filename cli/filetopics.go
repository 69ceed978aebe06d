package cli

import (
	"maps"
	"slices"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/tasks"
)

// topicInFile is a topic in the configuration file, with the names that the HTTP API
// uses. What may be a number of something is any: it is read by number and duration,
// so that all faults are reported together.
type topicInFile struct {
	Retry struct {
		MaxAttempts any `yaml:"max_attempts,omitempty"`
		MinBackoff  any `yaml:"min_backoff,omitempty"`
		MaxBackoff  any `yaml:"max_backoff,omitempty"`
	} `yaml:"retry,omitempty"`
	Lease        any  `yaml:"lease,omitempty"`
	Concurrency  any  `yaml:"concurrency,omitempty"`
	CountCrashes bool `yaml:"count_crashes,omitempty"`
	Paused       bool `yaml:"paused,omitempty"`
}

// loadTopics decodes strictly: a misspelt setting must not go unnoticed.
func (c *configFile) loadTopics(section ast.Node) error {
	var topics map[string]topicInFile
	if err := yaml.NodeToValue(section, &topics, yaml.Strict()); err != nil {
		return err
	}
	c.topics = make(map[string]tasks.TopicSettings, len(topics))
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		t, path := topics[name], "topics."+name
		c.faults.place(path, c.place(path))
		c.topics[name] = tasks.TopicSettings{
			Retry: tasks.Retry{
				MaxAttempts: c.number(path+".retry.max_attempts", t.Retry.MaxAttempts),
				MinBackoff:  c.duration(path+".retry.min_backoff", t.Retry.MinBackoff),
				MaxBackoff:  c.duration(path+".retry.max_backoff", t.Retry.MaxBackoff),
			},
			Lease:        c.duration(path+".lease", t.Lease),
			Concurrency:  c.number(path+".concurrency", t.Concurrency),
			CountCrashes: t.CountCrashes,
			Paused:       t.Paused,
		}
	}
	return nil
}

// number reads a number; nil is 0, which means the default. A zero that somebody has
// written is a fault: nobody means the default by it.
func (c *configFile) number(path string, v any) int {
	c.faults.place(path, c.place(path))
	switch n := v.(type) {
	case nil:
		return 0
	case uint64:
		if n > 0 && n < 1<<31 {
			return int(n)
		}
	}
	c.faults.add("%s: must be an integer of at least 1", path)
	return 0
}

// duration reads a duration in the same way.
func (c *configFile) duration(path string, v any) time.Duration {
	c.faults.place(path, c.place(path))
	if v == nil {
		return 0
	}
	text, _ := v.(string)
	d, err := client.ParseDuration(text)
	switch {
	case err != nil:
		c.faults.add("%s: %w", path, err)
	case d == 0:
		c.faults.add("%s: must not be zero", path)
	}
	return d
}
