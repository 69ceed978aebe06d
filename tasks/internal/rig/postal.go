package rig

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Postal is a way of delivery whose deliverers note by which settings they delivered.
type Postal struct {
	mu   sync.Mutex
	Sent []string
}

// Kind implements Way.
func (p *Postal) Kind() tasks.Kind { return "postal" }

// Deliverer implements Way.
func (p *Postal) Deliverer(_ string, settings json.RawMessage) (tasks.Deliverer, error) {
	var set struct{ To string }
	if err := json.Unmarshal(settings, &set); err != nil || set.To == "" {
		return nil, task.Invalid("to", "must be given")
	}
	return tasks.HandlerFunc(func(_ context.Context, d *tasks.Delivery) error {
		time.Sleep(time.Second)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.Sent = append(p.Sent, d.ID+" to "+set.To)
		return nil
	}), nil
}

// Text is what was delivered, in its order.
func (p *Postal) Text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.Sent, ", ")
}
