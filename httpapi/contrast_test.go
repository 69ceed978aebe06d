package httpapi

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A colour is its red, green and blue, from 0 to 1.
type colour [3]float64

// luminance is the relative luminance of WCAG 2.
func (c colour) luminance() float64 {
	var of [3]float64
	for i, v := range c {
		if of[i] = v / 12.92; v > 0.04045 {
			of[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return 0.2126*of[0] + 0.7152*of[1] + 0.0722*of[2]
}

// over is the colour with an opacity, on another one.
func (c colour) over(ground colour, opacity float64) colour {
	for i := range c {
		c[i] = c[i]*opacity + ground[i]*(1-opacity)
	}
	return c
}

func contrast(a, b colour) float64 {
	x, y := a.luminance(), b.luminance()
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func colourOf(t *testing.T, text string) (c colour) {
	t.Helper()
	hex := strings.TrimPrefix(text, "#")
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil || len(hex) != 6 {
		t.Fatalf("%q is no colour", text)
	}
	return colour{float64(n>>16) / 255, float64(n>>8&0xff) / 255, float64(n&0xff) / 255}
}

var (
	styleVariable = regexp.MustCompile(`(--[a-z-]+): light-dark\((#[0-9a-f]+), (#[0-9a-f]+)\)`)
	styleRule     = regexp.MustCompile(`([^{}]+)\{([^{}]*)\}`)
	styleText     = regexp.MustCompile(`(?:^|[;{\s])color: ([^;]+)`)
	styleGround   = regexp.MustCompile(`background(?:-color)?: var\((--[a-z-]+)\)`)
)

// Every text of the pages has a contrast of at least 4.5 on every ground that there is, and every
// edge of what can be filled in or pressed one of 3, in both themes (WCAG 2.2 AA, 1.4.3 and
// 1.4.11). What is old and therefore grey has it too.
func TestContrast(t *testing.T) {
	css := pageFile("assets/style.css")
	texts := []string{"--ink", "--soft", "--accent", "--bad", "--warn"}
	grounds := []string{"--paper", "--sheet", "--raised", "--bad-wash", "--warn-wash"}
	own := []string{"--on-accent", "--on-bad"} // on the ground of their rule alone
	for theme, name := range []string{"light", "dark"} {
		of := map[string]colour{}
		for _, v := range styleVariable.FindAllStringSubmatch(css, -1) {
			of[v[1]] = colourOf(t, v[2+theme])
		}
		check := func(where, fore, back string, a, b colour, least float64) {
			if got := contrast(a, b); got < least {
				t.Errorf("%s, %s: %s on %s has a contrast of %.2f, want %.1f", name, where, fore, back, got, least)
			}
		}
		for _, back := range grounds {
			for _, fore := range texts {
				check("text", fore, back, of[fore], of[back], 4.5)
			}
		}
		for _, back := range grounds[:3] {
			check("edge", "--edge", back, of["--edge"], of[back], 3)
			check("old", "--soft", back, of["--soft"].over(of[back], opacityOf(t, css)), of[back], 4.5)
		}
		for _, rule := range styleRule.FindAllStringSubmatch(css, -1) {
			where, body := strings.TrimSpace(rule[1]), rule[2]
			text := styleText.FindStringSubmatch(body)
			if text == nil || text[1] == "inherit" || text[1] == "transparent" {
				continue
			}
			fore := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(text[1]), "var("), ")")
			ground := styleGround.FindStringSubmatch(body)
			switch {
			case ground != nil:
				check(where, fore, ground[1], of[fore], of[ground[1]], 4.5)
			case !slices.Contains(texts, fore) || slices.Contains(own, fore):
				t.Errorf("%s: the colour of a text is %s, not one of %s", where, fore, fmt.Sprint(texts))
			}
		}
		for _, pair := range [][2]string{{"--on-accent", "--accent"}, {"--on-bad", "--bad"}} {
			var brighter [2]colour
			for i, c := range pair {
				for j, v := range of[c] {
					brighter[i][j] = min(v*1.1, 1) // while the pointer is on it
				}
			}
			check("pointed at", pair[0], pair[1], brighter[0], brighter[1], 4.5)
		}
	}
}

// opacityOf is that of what is old.
func opacityOf(t *testing.T, css string) float64 {
	t.Helper()
	found := regexp.MustCompile(`\.stale \{[^}]*opacity: ([0-9.]+)`).FindStringSubmatch(css)
	if found == nil {
		t.Fatal("what is old does not look so")
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
