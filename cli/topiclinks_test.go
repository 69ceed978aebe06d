package cli

import "testing"

// Links of a topic are set by name, shown, and taken away.
func TestTopicLinks(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"topics", "set", "--create", "shop", "--link", "logs=https://logs.example/?q={id}&of=1,2;3", "--link", "shop=https://shop.example/{group}"},
		"links", "logs https://logs.example/?q={id}&of=1,2;3, shop https://shop.example/{group}")
	s.prints([]string{"topics", "set", "shop", "--link", "logs="}, "shop https://shop.example/{group}")
	if links := s.object("topics", "get", "shop")["links"].(map[string]any); len(links) != 1 {
		t.Errorf("the links are %v", links)
	}
	s.fails(exitUsage, []string{"topics", "set", "shop", "--link", "logs=ftp://x"}, "links.logs")
}
