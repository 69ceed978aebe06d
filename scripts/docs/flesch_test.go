package docs

import (
	"regexp"
	"strings"
)

// leastEase is the reading ease that each page of docs must have: "fairly difficult" ends at 60,
// "difficult" at 50. The first page is easier.
const (
	leastEase         = 55
	leastEaseOfReadme = 60
)

// ease returns the Flesch reading ease of a text, by its formula:
//
//	206.835 - 1.015 * words/sentences - 84.6 * syllables/words
//
// It is of Rudolf Flesch, "A New Readability Yardstick", Journal of Applied Psychology 32 (1948).
// 100 is very easy, 0 very hard; newspapers have about 60.
func ease(text string) float64 {
	var words, sentences, sounds int
	for _, sentence := range sentencesOf(text) {
		sentences++
		for _, word := range sentence {
			words++
			sounds += syllables(word)
		}
	}
	if words == 0 {
		return 100
	}
	return 206.835 - 1.015*float64(words)/float64(sentences) - 84.6*float64(sounds)/float64(words)
}

var (
	image     = regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)`)
	target    = regexp.MustCompile(`\]\([^)]*\)`)
	tag       = regexp.MustCompile(`(?s)<[^>]*>`)
	codeSpan  = regexp.MustCompile("`[^`]*`")
	title     = regexp.MustCompile(`(?m)^(#.*|\|.*|\s*[-|: ]+\|.*)$`)
	item      = regexp.MustCompile(`\n\s*(?:[-*]|\d+\.)\s`)
	full      = regexp.MustCompile(`[.!?]+["')*]*(?:\s|$)`)
	wordForms = regexp.MustCompile(`[A-Za-zÀ-ÿ]+(?:['’][a-z]+)?`)
)

// prose returns what stands in a page beside code, tables, headings, pictures and comments.
func prose(page string) string {
	page = fences.ReplaceAllString(page, "\n")
	page = title.ReplaceAllString(page, "\n")
	page = image.ReplaceAllString(page, "")
	page = target.ReplaceAllString(page, "]")
	return tag.ReplaceAllString(page, "")
}

// sentencesOf returns the words of each sentence. A paragraph and an item of a list end a sentence,
// a colon and a semicolon do not. A name in code is a word, and reads as one: "code".
func sentencesOf(page string) [][]string {
	var all [][]string
	text := codeSpan.ReplaceAllString(prose(page), "code")
	for paragraph := range strings.SplitSeq(item.ReplaceAllString(text, "\n\n"), "\n\n") {
		for _, sentence := range full.Split(paragraph, -1) {
			if words := wordForms.FindAllString(sentence, -1); len(words) > 0 {
				all = append(all, words)
			}
		}
	}
	return all
}

var (
	vowels = regexp.MustCompile(`[aeiouy]+`)
	// An e that is written and not heard: at the end of a word, in an ending, or before one.
	mute = regexp.MustCompile(`[^aeiouyl]e$|[aeiouyrl]le$|[^aeioudty]ed$|[^aeiouszxgch]es$|[^aeioustcgzx]es$|[^aeiou]e(?:ly|ness|ment|ments|less|ful|fully)$|where|there(?:in|of|fore)|some(?:thing|times|where|how)|there|more(?:over)`)
	// Vowels that stand together and are heard apart.
	apart = regexp.MustCompile(`[^ct]ia(?:[^rl]|$)|[^aeiou]i(?:o$|os$|um|or)|[^ctgsx]ious|[aeiouy]ing|[^gqu]ua[lt]|[^gq]uous|[^cst]ien[ct]|eate|eo(?:u|$)|eat(?:ed|or|ion|ing)|ier$|iest$|iet|iv?ity.|react|reali|idea|area|ism`)
)

// irregular are words that the rules get wrong, and that are frequent here.
var irregular = map[string]int{
	"api": 3, "batches": 2, "beyond": 2, "crashes": 2, "elsewhere": 2, "every": 3, "finishes": 3, "fire": 2, "fired": 2, "fires": 2,
	"firewall": 2, "forecast": 2, "handled": 2, "handles": 2, "hour": 2, "hours": 2, "id": 2, "ids": 2, "layout": 2, "misfire": 2,
	"pipeline": 2, "prometheus": 4, "reaches": 2, "repeated": 3, "repeating": 3, "settled": 2, "settles": 2, "several": 2, "tables": 2,
	"timeout": 2, "url": 3, "urls": 3, "variables": 4, "wherever": 3,
}

// syllables counts the syllables of an English word by its letters: groups of vowels, less the e
// that is mute, more for vowels that are heard apart. TestSyllables says how often it is right.
func syllables(word string) int {
	word = strings.TrimSuffix(strings.ToLower(strings.ReplaceAll(word, "’", "'")), "'s")
	if n, known := irregular[word]; known {
		return n
	}
	if !vowels.MatchString(word) { // letters, such as TTL
		return len(word) + 2*strings.Count(word, "w")
	}
	n := len(vowels.FindAllString(word, -1)) - len(mute.FindAllString(word, -1)) + len(apart.FindAllString(word, -1))
	return max(n, 1)
}
