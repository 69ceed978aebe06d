package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/tasks"
)

// topicInFile is a topic in the file, with the names that the HTTP API uses.
type topicInFile struct {
	Delivery map[string]any `yaml:"delivery"`
	Retry    struct {
		MaxAttempts int           `yaml:"max_attempts"`
		MinBackoff  time.Duration `yaml:"min_backoff"`
		MaxBackoff  time.Duration `yaml:"max_backoff"`
		MaxAge      time.Duration `yaml:"max_age"`
	} `yaml:"retry"`
	Lease       time.Duration `yaml:"lease"`
	Concurrency int           `yaml:"concurrency"`
	Rate        struct {
		PerSecond float64 `yaml:"per_second"`
		Burst     int     `yaml:"burst"`
	} `yaml:"rate"`
	Weight        int           `yaml:"weight"`
	Spread        time.Duration `yaml:"spread"`
	Misfire       string        `yaml:"misfire"`
	CountCrashes  bool          `yaml:"count_crashes"`
	Paused        bool          `yaml:"paused"`
	DeadRetention time.Duration `yaml:"dead_retention"`
	KeepFinished  time.Duration `yaml:"keep_finished"`
	TaskDelivery  bool          `yaml:"task_delivery"`
	PerGroup      int           `yaml:"concurrency_per_group"`
	Links         tasks.Links   `yaml:"links"`
	OnDead        struct {
		Topic string        `yaml:"topic"`
		Delay time.Duration `yaml:"delay"`
	} `yaml:"on_dead"`
}

// settings returns the settings of a topic in the file.
func (t *topicInFile) settings() (tasks.TopicSettings, error) {
	set := tasks.TopicSettings{
		Retry:         tasks.Retry(t.Retry),
		Lease:         t.Lease,
		Concurrency:   t.Concurrency,
		Rate:          tasks.Rate(t.Rate),
		Weight:        t.Weight,
		Spread:        t.Spread,
		Misfire:       tasks.Misfire(t.Misfire),
		CountCrashes:  t.CountCrashes,
		Paused:        t.Paused,
		DeadRetention: t.DeadRetention,
		KeepFinished:  t.KeepFinished,
		TaskDelivery:  t.TaskDelivery,
		Links:         t.Links,
		OnDead:        tasks.OnDead(t.OnDead),

		ConcurrencyPerGroup: t.PerGroup,
	}
	kind, found := t.Delivery["kind"]
	if text, ok := kind.(string); ok {
		set.Kind = tasks.Kind(text)
	} else if found {
		return set, errors.New("delivery.kind: must be text")
	}
	delete(t.Delivery, "kind")
	if len(t.Delivery) == 0 {
		return set, nil
	}
	text, err := json.Marshal(t.Delivery)
	if err != nil {
		set.Kind = "" // so that the other settings are checked without it
		return set, errors.New("delivery: must hold only what JSON can say: no .inf and no .nan")
	}
	set.Delivery = text
	return set, nil
}

// loadTopics decodes strictly: a misspelt setting must not go unnoticed.
func (c *configFile) loadTopics(section ast.Node) error {
	faultless := true
	for _, f := range fields(section) {
		path := "topics." + f.Key.GetToken().Value
		c.faults.place(path, c.place(path))
		for _, name := range []string{".retry.max_attempts", ".concurrency", ".rate.burst", ".weight"} {
			faultless = c.checkText(path+name, mustBeNumber) && faultless
		}
		for _, name := range []string{".retry.max_age", ".retry.min_backoff", ".retry.max_backoff", ".lease", ".dead_retention"} {
			faultless = c.checkText(path+name, mustBeDuration) && faultless
		}
	}
	if !faultless {
		return nil // the decoder would stop at the first fault
	}
	var topics map[string]topicInFile
	if err := yaml.NodeToValue(section, &topics, yaml.Strict(), yaml.CustomUnmarshaler(durationInFile)); err != nil {
		return err
	}
	c.topics = make(map[string]tasks.TopicSettings, len(topics))
	for name, t := range topics {
		path := "topics." + name
		var err error
		if c.topics[name], err = t.settings(); err != nil {
			c.faults.place(path, c.place(path))
			c.faults.add("%s.%w", path, err)
		}
	}
	return nil
}

// checkText notes a fault if a setting stands in the file and is not what it must be. Zero is a
// fault: to package tasks it means the default, and an operator who writes it means something else.
func (c *configFile) checkText(path string, must func(text string) error) bool {
	if c.lines[path] == 0 {
		return true
	}
	err := must(c.texts[path])
	if err != nil {
		c.faults.place(path, c.place(path))
		c.faults.add("%s: %w", path, err)
	}
	return err == nil
}

func mustBeNumber(text string) error {
	switch n, err := strconv.ParseInt(text, 0, 32); {
	case err != nil:
		return errors.New("must be an integer")
	case n == 0:
		return errors.New("must not be zero")
	}
	return nil
}

func mustBeDuration(text string) error {
	d, err := client.ParseDuration(text)
	if err == nil && d == 0 {
		return errors.New("must not be zero")
	}
	return err
}

// durationInFile reads a duration, which may also be in days.
func durationInFile(d *time.Duration, text []byte) (err error) {
	var plain string
	if err := yaml.Unmarshal(text, &plain); err != nil {
		return err
	}
	*d, err = client.ParseDuration(plain)
	return err
}

// topicText is a topic as the file may have it, on one line.
func topicText(t *tasks.TopicSettings) string {
	var parts, retry, rate []string
	number := func(parts *[]string, name string, n int) {
		if n != 0 {
			*parts = append(*parts, fmt.Sprintf("%s: %d", name, n))
		}
	}
	duration := func(parts *[]string, name string, d time.Duration) {
		if d != 0 {
			*parts = append(*parts, fmt.Sprintf("%s: %s", name, client.Duration(d)))
		}
	}
	if t.Kind != "" {
		parts = append(parts, "delivery: "+deliveryText(t))
	}
	number(&retry, "max_attempts", t.Retry.MaxAttempts)
	duration(&retry, "max_age", t.Retry.MaxAge)
	duration(&retry, "min_backoff", t.Retry.MinBackoff)
	duration(&retry, "max_backoff", t.Retry.MaxBackoff)
	if len(retry) > 0 {
		parts = append(parts, "retry: {"+strings.Join(retry, ", ")+"}")
	}
	duration(&parts, "lease", t.Lease)
	number(&parts, "concurrency", t.Concurrency)
	number(&parts, "concurrency_per_group", t.ConcurrencyPerGroup)
	if t.Rate.PerSecond != 0 {
		rate = append(rate, fmt.Sprintf("per_second: %v", t.Rate.PerSecond))
	}
	if number(&rate, "burst", t.Rate.Burst); len(rate) > 0 {
		parts = append(parts, "rate: {"+strings.Join(rate, ", ")+"}")
	}
	number(&parts, "weight", t.Weight)
	duration(&parts, "spread", t.Spread)
	if t.Misfire != "" {
		parts = append(parts, "misfire: "+string(t.Misfire))
	}
	duration(&parts, "dead_retention", t.DeadRetention)
	duration(&parts, "keep_finished", t.KeepFinished)
	if t.CountCrashes {
		parts = append(parts, "count_crashes: true")
	}
	if t.OnDead.Topic != "" {
		next := []string{"topic: " + t.OnDead.Topic}
		duration(&next, "delay", t.OnDead.Delay)
		parts = append(parts, "on_dead: {"+strings.Join(next, ", ")+"}")
	}
	if len(t.Links) > 0 {
		text, _ := json.Marshal(t.Links) // of texts; JSON is YAML
		parts = append(parts, "links: "+string(text))
	}
	if t.TaskDelivery {
		parts = append(parts, "task_delivery: true")
	}
	if t.Paused {
		parts = append(parts, "paused: true")
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// deliveryText is a way of delivery on one line: JSON is YAML.
func deliveryText(t *tasks.TopicSettings) string {
	text, err := json.Marshal(httpapi.Delivery{Kind: string(t.Kind), Settings: t.Delivery})
	if err != nil {
		return `{kind: ` + string(t.Kind) + `}` // text from the file is always JSON
	}
	return string(text)
}

// hasRepeatedField reports whether a JSON object has a field twice. The server, which would refuse
// that, does not see both.
func hasRepeatedField(object string) bool {
	d := json.NewDecoder(strings.NewReader(object))
	seen := map[any]bool{}
	for _, err := d.Token(); err == nil && d.More(); {
		name, _ := d.Token()
		if seen[name] {
			return true
		}
		seen[name] = true
		var value json.RawMessage
		err = d.Decode(&value)
	}
	return false
}

// replaceWay is a patch that replaces one way of delivery by another.
func replaceWay(old, way client.Way) map[string]any {
	patch := map[string]any{"kind": way.Kind}
	for name := range old.Settings {
		patch[name] = nil
	}
	for name, value := range way.Settings {
		if inner, is := old.Settings[name].(map[string]any); is {
			value = replaceValue(inner, value)
		}
		patch[name] = value
	}
	return patch
}

// replaceValue is the patch that replaces an object by a value.
func replaceValue(old map[string]any, value any) any {
	fields, is := value.(map[string]any)
	if !is {
		return value
	}
	patch := map[string]any{}
	for name := range old {
		patch[name] = nil
	}
	for name, v := range fields {
		if inner, is := old[name].(map[string]any); is {
			v = replaceValue(inner, v)
		}
		patch[name] = v
	}
	return patch
}
