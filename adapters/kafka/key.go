package kafka

import (
	"strings"

	"github.com/lapsehq/lapse/tasks"
)

// A keyFunc makes the key of a task's record; nil makes none.
type keyFunc func(d *tasks.Delivery) []byte

// keyOf returns the function of the key that a topic has chosen.
func keyOf(choice string) (keyFunc, bool) {
	switch choice {
	case "id":
		return func(d *tasks.Delivery) []byte { return []byte(d.ID) }, true
	case "group":
		return func(d *tasks.Delivery) []byte {
			if d.Group == "" {
				return nil
			}
			return []byte(d.Group)
		}, true
	case "none":
		return func(*tasks.Delivery) []byte { return nil }, true
	}
	name, ok := strings.CutPrefix(choice, "header:")
	if !ok || !validHeader(name) {
		return nil, false
	}
	return func(d *tasks.Delivery) []byte {
		if value, has := d.Headers[name]; has {
			return []byte(value)
		}
		return nil
	}, true
}

// validHeader reports whether a task can have a header of this name.
func validHeader(name string) bool {
	bad := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	}
	return name != "" && len(name) <= 128 && !strings.ContainsFunc(name, bad)
}
