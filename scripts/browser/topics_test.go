//go:build browser

package browser

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
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
	p.shows(".pages", "Page 2")
	p.press("Next")
	p.shows("main", "topic.19")
	p.shows(".pages", "Page 3")
	p.press("Back")
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
	p.waits(func() (bool, string) { return paused(), "the topic is not paused" })
	p.press("Resume")
	p.hides("h1", "paused")
	p.waits(func() (bool, string) { return !paused(), "the topic is still paused" })
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
	p.waits(func() (bool, string) { // until the other nodes have heard of it
		topic, err := r.Topic("order.unpaid")
		return err == nil && topic.Settings.Retry.MaxAttempts == 5 && topic.Settings.Lease == time.Minute && !topic.ConcurrencySet,
			fmt.Sprintf("the settings are %+v, %v", topic.Settings, err)
	})
	// The second change of the two does not undo the first.
	p.press("Edit settings")
	if err := r.Admin().PauseTopic(r.Context(), "order.unpaid", true); err != nil {
		t.Fatal(err)
	}
	p.fill(`[name="weight"]`, "3")
	p.press("Save")
	p.shows("dialog", "The settings have changed meanwhile.")
	p.press("Save") // with what they are now
	p.shows(".notices", "The settings are saved.")
	p.shows("h1", "paused")
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
	p.shows("main table", "topic.15")
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

// The page of a topic tells why attempts have failed: the last one, and those of tasks that will be
// tried again.
func TestLastErrors(t *testing.T) {
	r := serve(t)
	_, err := r.Admin().ChangeTopic(t.Context(), "invoice.send", -1, func(set *tasks.TopicSettings) error {
		set.Retry = tasks.Retry{MinBackoff: time.Hour, MaxBackoff: 2 * time.Hour}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Handle("invoice.send", func(_ context.Context, d *tasks.Delivery) error { return errors.New("no template for " + d.ID) }); err != nil {
		t.Fatal(err)
	}
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/topics/invoice.send")
	p.shows("#errors", "No attempt has failed since the start.")
	r.schedule("invoice.send", "invoice-7", 0)
	p.shows("#errors .empty", "no template for invoice-7")
	r.schedule("invoice.send", "invoice-8", 0)
	p.shows("#errors .empty", "no template for invoice-8")
	p.shows("#errors table", "no template for invoice-7")
	p.press("invoice-7")
	p.shows(".story", "Attempt 1 failed")
	p.content()
}

// The columns of a table stay where they are when its texts change.
func TestColumnsStay(t *testing.T) {
	r := serve(t)
	r.schedule("cart", "cart-1", 30*time.Hour) // on another day, which takes more room than a time
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/tasks")
	columns := func() string {
		return eval[string](p, `[...document.querySelectorAll("main th")].map(e => Math.round(e.getBoundingClientRect().left)).join()`)
	}
	p.shows("main table", "cart-1")
	tasksBefore := columns()
	p.load(r.url + "/#/topics")
	p.shows("main table", "cart")
	topicsBefore := columns()
	for i := range 1200 {
		r.schedule("a.topic.with.a.rather.long.name", fmt.Sprintf("a-task-with-a-rather-long-id-%04d", i), 30*time.Minute)
	}
	p.shows("main table", "1,200")
	if after := columns(); after != topicsBefore {
		t.Errorf("the columns of topics go from %s to %s", topicsBefore, after)
	}
	p.load(r.url + "/#/tasks")
	p.shows("main table", "a-task-with-a-rather-long-id-0000")
	if after := columns(); after != tasksBefore {
		t.Errorf("the columns of tasks go from %s to %s", tasksBefore, after)
	}
	p.content()
}
