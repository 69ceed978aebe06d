package docs

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Each page of docs reads easily enough.
func TestReadingEase(t *testing.T) {
	for _, page := range pages(t) {
		least := leastEase
		if page == "README.md" {
			least = leastEaseOfReadme
		}
		if got := ease(readPage(t, page)); got < float64(least) {
			t.Errorf("%s: the reading ease is %.1f, at least %d is wanted: shorter sentences, shorter words", page, got, least)
		} else {
			t.Logf("%s: %.1f", page, got)
		}
	}
}

// Each page shows how something is done: a command, a program or data.
func TestEveryPageHasAnExample(t *testing.T) {
	for _, page := range pages(t) {
		shown := 0
		for _, b := range blocksOf(page, readPage(t, page)) {
			if b.lang != "run" && b.lang != "new shell" && b.lang != "text" {
				shown++
			}
		}
		if shown == 0 {
			t.Errorf("%s has no example", page)
		}
	}
}

// The index of a folder names each of its pages, and that of docs the one of docs/internals.
func TestIndexHasEveryPage(t *testing.T) {
	for _, page := range pages(t) {
		folder, name := filepath.Split(page)
		switch page {
		case "README.md", "docs/README.md":
			continue
		case "docs/internals/README.md":
			folder, name = "docs/", "internals/README.md"
		}
		if !strings.Contains(readPage(t, folder+"README.md"), "]("+name+")") {
			t.Errorf("%sREADME.md does not name %s", folder, page)
		}
	}
}

// The page about moving says of each system what gets better, and as often what does not.
func TestMovingIsNotAllBetter(t *testing.T) {
	text := readPage(t, "docs/moving.md")
	better, not := strings.Count(text, "\n**Better.** "), strings.Count(text, "\n**Not better.** ")
	if better < 7 || better != not {
		t.Errorf("it says %d times what gets better, and %d times what does not", better, not)
	}
}

func TestSyllables(t *testing.T) {
	text, err := os.ReadFile("testdata/syllables.txt")
	if err != nil {
		t.Fatal(err)
	}
	words, right, sum, want := 0, 0, 0, 0
	for line := range strings.Lines(string(text)) {
		word, number, found := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(number)
		if !found || strings.HasPrefix(line, "#") {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		words++
		want += n
		got := syllables(word)
		sum += got
		if got == n {
			right++
		} else {
			t.Logf("%s has %d, not %d", word, n, got)
		}
	}
	if share := float64(right) / float64(words); words < 500 || share < 0.98 {
		t.Errorf("%.3f of %d words are right, want 0.98", share, words)
	}
	if off := math.Abs(float64(sum)/float64(want) - 1); off > 0.01 {
		t.Errorf("all together are off by %.3f", off)
	}
}

func TestEase(t *testing.T) {
	for text, want := range map[string]float64{
		"The cat sat on the mat.": 206.835 - 1.015*6 - 84.6,
		"# Title\n\nThe cat sat. It sat on `x`.\n\n| a | table |\n\n```\ncode is not read\n```\n- one\n- two\n": 206.835 - 1.015*9.0/4 - 84.6,
		"See [the page](https://example.org/a.b.c), 3.5 times.":                                                 206.835 - 1.015*4 - 84.6,
	} {
		if got := ease(text); math.Abs(got-want) > 0.01 {
			t.Errorf("%q has %.2f, want %.2f: %q", text, got, want, sentencesOf(text))
		}
	}
}
