package task

import (
	"fmt"
	"strings"
	"testing"
)

// A link leads to a web page of the host that the topic names, whatever the task is called.
func TestLinks(t *testing.T) {
	for _, right := range []string{
		"https://logs.example/?q={id}", "http://localhost:3000/{topic}/{group}/{id}#log", "https://shop.example", "https://shop.example/" + strings.Repeat("x", maxLink-21),
	} {
		if f := (TopicSettings{Links: Links{"logs": right}}).Faults(); f.Err() != nil {
			t.Errorf("%s: %v", right, f.Err())
		}
	}
	for _, wrong := range []string{
		"", "logs.example", "/logs/{id}", "javascript:alert(1)", "data:text/html,x", "ftp://logs.example/{id}", "https://{id}/", "https://{group}.example/{id}", "https:///x", "https://user:word@logs.example/",
		"https://logs.example/{user}", "https://logs.example/{id", "https://logs.example/}", "https://logs.example/ {id}", "https://logs.example/\n", "https://logs.example?q={id}", "https://logs.example/\"", "https://shop.example/" + strings.Repeat("x", maxLink-20),
	} {
		err := (TopicSettings{Links: Links{"logs": wrong}}).Faults().Err()
		if err == nil || !strings.Contains(err.Error(), "links.logs") {
			t.Errorf("%q is taken: %v", wrong, err)
		}
	}
	many := Links{}
	for i := range MaxLinks + 1 {
		many[fmt.Sprint("link", i)] = "https://logs.example/"
	}
	for name, l := range map[string]Links{"many": many, "named": {strings.Repeat("x", maxLinkName+1): "https://logs.example/"}, "odd": {"<b>": "https://logs.example/"}} {
		if err := (TopicSettings{Links: l}).Faults().Err(); err == nil || !strings.Contains(err.Error(), "links must") {
			t.Errorf("%s links are taken: %v", name, err)
		}
	}
}
