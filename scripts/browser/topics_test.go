//go:build browser

package browser

import (
	"fmt"
	"testing"
	"time"
)

// Many topics come page by page.
func TestManyTopics(t *testing.T) {
	r := serve(t)
	for i := range 20 {
		r.schedule(fmt.Sprintf("topic.%02d", i), "", time.Hour)
	}
	p := open(t)
	p.load(r.url + "/#/topics")
	p.shows("h1", "20 topics")
	p.shows("main", "topic.00")
	p.press("Next")
	p.shows("main", "topic.19")
	p.shows(".pages", "Page 2")
	p.press("Back")
	p.shows("main", "topic.00")
	r.schedule("topic.17", "", time.Hour)
	p.pressIn("th", "Pending")
	p.shows("main tbody tr:first-child", "topic.17")
	p.fill(`[name="search"]`, "C.0")
	p.shows("h1", "10 topics")
	p.hides("main table", "topic.17")
	p.content()
}

// Pause it, and resume it.
func TestPause(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-42", time.Hour)
	paused := func() bool {
		topic, err := r.Topic("order.unpaid")
		return err == nil && topic.Settings.Paused
	}
	p := open(t)
	p.load(r.url + "/#/topics/order.unpaid")
	p.press("Pause")
	p.shows(".notices", "order.unpaid is paused.")
	p.shows("h1", "paused")
	if !paused() {
		t.Error("the topic is not paused")
	}
	p.press("Resume")
	p.hides("h1", "paused")
	if paused() {
		t.Error("the topic is still paused")
	}
	p.content()
}

// The settings are changed by a form. What the server refuses is shown beside the field.
func TestSettings(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.load(r.url + "/#/topics/order.unpaid")
	p.press("Edit settings")
	p.fill(`[name="retry.max_attempts"]`, "5")
	p.fill(`[name="lease"]`, "soon")
	p.press("Save")
	p.shows("dialog .wrong", "must be")
	if eval[string](p, `document.activeElement.closest("dialog") ? "dialog" : "page"`) != "dialog" {
		t.Error("the focus has left the dialog")
	}
	p.fill(`[name="lease"]`, "1m")
	p.press("Save")
	p.shows(".notices", "The settings are saved.")
	p.shows("main", "5 attempts")
	topic, err := r.Topic("order.unpaid")
	if err != nil {
		t.Fatal(err)
	}
	if topic.Settings.Retry.MaxAttempts != 5 || topic.Settings.Lease != time.Minute || topic.ConcurrencySet {
		t.Errorf("the settings are %+v", topic.Settings)
	}
	// The second change of the two does not undo the first.
	p.press("Edit settings")
	if err := r.PauseTopic(r.Context(), "order.unpaid", true); err != nil {
		t.Fatal(err)
	}
	p.fill(`[name="weight"]`, "3")
	p.press("Save")
	p.shows("dialog", "It has another revision")
}

// The address may lead to another order or search while a later page is shown: the list begins
// anew, and the field shows what is searched.
func TestTopicsByAddress(t *testing.T) {
	r := serve(t)
	for i := range 20 {
		r.schedule(fmt.Sprintf("topic.%02d", i), "", time.Hour)
	}
	p := open(t)
	typed := func() string { return eval[string](p, `document.querySelector('[name="search"]').value`) }
	goes := func(address string) { p.ask(`location.hash = "` + address + `"; return ""`) }
	p.load(r.url + "/#/topics?sort=name")
	p.press("Next")
	p.shows("main table", "topic.19")
	goes("#/topics?sort=pending")
	p.shows("main table", "topic.00")
	p.shows(".pages", "Page 1")
	p.press("Next")
	p.shows(".pages", "Page 2")
	p.ask(`history.back(); return ""`)
	p.shows("main table", "topic.00")
	p.shows(".pages", "Page 1")
	p.fill(`[name="search"]`, "c.0")
	p.shows("h1", "10 topics")
	p.press("Topics") // in the bar
	p.shows("h1", "20 topics")
	if text := typed(); text != "" {
		t.Errorf("the field shows %q", text)
	}
	goes("#/topics?search=c.01")
	p.shows("h1", "1 topic")
	if text := typed(); text != "c.01" {
		t.Errorf("the field shows %q", text)
	}
	if fault := p.text(".fault"); fault != "" {
		t.Errorf("the page shows %s", fault)
	}
	p.content()
}
