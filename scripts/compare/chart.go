package main

import (
	"bytes"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours that can be read on white and on black alike: the image has no background.
var (
	ink    = color.RGBA{0x7d, 0x85, 0x90, 0xff}
	ours   = color.RGBA{0x2f, 0x81, 0xf7, 0xff}
	theirs = color.RGBA{0x8b, 0x94, 0x9e, 0xff}
)

// A bar is drawn from one value to another; its text stands behind it.
type bar struct {
	name     string
	lapse    bool
	from, to float64
	text     string
	heading  bool // a line of text without a bar
}

// chart draws both panels, one above the other.
func (c *comparison) chart(w io.Writer) error {
	speeds, lates := c.speeds(), c.latenesses()
	const width, line, frame = 26 * vg.Centimeter, 0.55 * vg.Centimeter, 2.4 * vg.Centimeter
	height := func(bars []bar) vg.Length { return vg.Length(len(bars))*line + frame }
	above, below := height(speeds), height(lates)
	canvas := vgsvg.NewWith(vgsvg.UseWH(width, above+below))
	whole := draw.New(canvas)
	for _, panel := range []struct {
		title, axis string
		bars        []bar
		area        draw.Canvas
	}{
		{"Throughput: longer is better", "tasks a second, logarithmic", speeds, draw.Crop(whole, 0, 0, below, 0)},
		{"Lateness, from p50 to p99: further left is better", "milliseconds, logarithmic", lates, draw.Crop(whole, 0, 0, 0, -above)},
	} {
		if len(panel.bars) == 0 {
			continue
		}
		panelOf(panel.title, panel.axis, panel.bars).Draw(panel.area)
	}
	var image bytes.Buffer
	if _, err := canvas.WriteTo(&image); err != nil {
		return err
	}
	// The font is not everywhere. Arial has its measures.
	_, err := io.WriteString(w, strings.ReplaceAll(image.String(), "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
	return err
}

// speeds are a bar for each entrant that was measured, under the title of its row.
func (c *comparison) speeds() (all []bar) {
	for i := range c.rankings {
		k := &c.rankings[i]
		if k.lateness {
			continue
		}
		all = append(all, under(k.title, k.outcomes, func(o *outcome) (bar, bool) {
			v := o.median(speed)
			return bar{name: o.name, lapse: o.lapse, to: v, text: thousands(v)}, v > 0
		})...)
	}
	return all
}

func (c *comparison) latenesses() (all []bar) {
	for i := range c.rankings {
		k := &c.rankings[i]
		if !k.lateness {
			continue
		}
		all = append(all, under(k.title, k.outcomes, func(o *outcome) (bar, bool) {
			low, high := o.median(p50), o.median(p99)
			return bar{name: o.name, lapse: o.lapse, from: max(low, 0.01), to: high, text: millis(low) + " to " + millis(high)}, high > 0
		})...)
	}
	return all
}

// under returns the bars of the entrants that were measured, with a heading unless there are none.
func under(title string, outcomes []outcome, of func(*outcome) (bar, bool)) []bar {
	all := []bar{{heading: true, name: title}}
	for i := range outcomes {
		if b, ok := of(&outcomes[i]); ok {
			all = append(all, b)
		}
	}
	if len(all) == 1 {
		return nil
	}
	return all
}

// panelOf makes the plot of at least one bar.
func panelOf(title, axis string, bars []bar) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.Text, p.X.Label.Text = title, axis
	low, high := math.Inf(1), 0.0
	for _, b := range bars {
		if b.heading {
			continue
		}
		least := b.from
		if least == 0 {
			least = b.to
		}
		low, high = min(low, least), max(high, b.to)
	}
	p.X.Min, p.X.Max = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))*2
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = decades{}
	p.Y.Min, p.Y.Max = -0.6, float64(len(bars))-0.4
	var names []plot.Tick
	for i, b := range slices.Backward(bars) {
		at := float64(len(bars) - 1 - i)
		if !b.heading {
			names = append(names, plot.Tick{Value: at, Label: b.name})
		} else {
			names = append(names, plot.Tick{Value: at}) // no label: it is written across
		}
	}
	p.Y.Tick.Marker = plot.ConstantTicks(names)
	p.Y.Tick.Length, p.Y.LineStyle.Width = 0, 0
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Color, style.Font.Variant, style.Font.Size = ink, "Sans", vg.Points(11)
	}
	p.Title.TextStyle.Font.Size = vg.Points(14)
	p.Title.Padding = vg.Points(6)
	for _, line := range []*draw.LineStyle{&p.X.LineStyle, &p.X.Tick.LineStyle} {
		line.Color = ink
	}
	p.Add(barPlotter(bars))
	return p
}

// barPlotter draws the bars, the first one at the top.
type barPlotter []bar

// Plot implements plot.Plotter.
func (bars barPlotter) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = text.XLeft, text.YCenter
	for i, b := range bars {
		at := float64(len(bars) - 1 - i)
		if b.heading {
			heading := style
			heading.Font.Weight = 2 // bold
			c.FillText(heading, vg.Point{X: x(p.X.Min), Y: y(at)}, b.name)
			continue
		}
		fill := theirs
		if b.lapse {
			fill = ours
		}
		left, right := x(max(b.from, p.X.Min)), x(b.to)
		c.FillPolygon(fill, []vg.Point{{X: left, Y: y(at - 0.36)}, {X: right + 1, Y: y(at - 0.36)}, {X: right + 1, Y: y(at + 0.36)}, {X: left, Y: y(at + 0.36)}})
		c.FillText(style, vg.Point{X: right + vg.Points(5), Y: y(at)}, b.text)
	}
}

// decades marks the powers of ten.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(low, high float64) (all []plot.Tick) {
	for v := math.Pow(10, math.Ceil(math.Log10(low)-1e-9)); v <= high; v *= 10 {
		label := strconv.FormatFloat(v, 'g', -1, 64)
		if v >= 1000 {
			label = strconv.FormatFloat(v/1000, 'f', -1, 64) + "k"
		}
		if v >= 1e6 {
			label = strconv.FormatFloat(v/1e6, 'f', -1, 64) + "M"
		}
		all = append(all, plot.Tick{Value: v, Label: label})
	}
	return all
}
