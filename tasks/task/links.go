package task

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Links are addresses of other systems that the pages of Lapse show with a task: of its logs, its
// traces, the order in the shop. They are by name, which is the text of the link. In an address
// {id}, {topic} and {group} stand for those of the task. A map is replaced as a whole, never
// changed.
type Links map[string]string

// The bounds of TopicSettings.Links.
const (
	MaxLinks    = 8
	maxLinkName = 40   // bytes
	maxLink     = 1024 // bytes of an address
)

// LinkProblem is what is wrong with an address that is none.
const LinkProblem = "must be an address with http:// or https:// and a host, of at most 1024 bytes, with no other fields than {id}, {topic} and {group}"

var linkField = regexp.MustCompile(`\{[^{}]*\}`)

// within adds a fault for each link that pages could not show.
func (l Links) within(f *Faults) {
	if len(l) > MaxLinks {
		f.Add("links", fmt.Sprintf("must be at most %d", MaxLinks))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		switch {
		case len(name) > maxLinkName || !ValidName(name):
			f.Add("links", fmt.Sprintf("must have names of at most %d letters, digits, '.', '_', ':', '@' or '-'", maxLinkName))
		case !validLink(l[name]):
			f.Add("links."+name, LinkProblem)
		}
	}
}

// validLink reports whether a pattern gives an address of a web page, whatever the task is.
func validLink(pattern string) bool {
	fields := true
	filled := linkField.ReplaceAllStringFunc(pattern, func(field string) string {
		fields = fields && (field == "{id}" || field == "{topic}" || field == "{group}")
		return "x"
	})
	u, err := url.Parse(filled)
	// A field in the host would lead to wherever a caller's id says.
	_, rest, _ := strings.Cut(pattern, "://")
	host, _, _ := strings.Cut(rest, "/")
	return err == nil && fields && len(pattern) <= maxLink && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil &&
		!strings.ContainsAny(host, "{}?#\\") && !strings.ContainsAny(filled, "{}\"<> \t\r\n")
}
