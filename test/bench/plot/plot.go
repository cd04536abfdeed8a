// Package plot draws results as SVG pictures: one panel for each row and metric, with a line over
// the size if the cases differ by a size, and otherwise a bar for each case. Every goal is shown.
// The same rows yield the same bytes.
package plot

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"fairlead.io/fairlead/test/bench/result"
)

// Picture describes a picture.
type Picture struct {
	Title    string
	Subtitle string // such as the machine
	Rows     []result.Row
}

// The dimensions of a picture, in pixels.
const (
	width   = 960.0
	margin  = 28.0
	spacing = 34.0 // between panels
)

// Colors that people with any color vision can tell apart, and gray for the unknown.
const (
	ink   = "#1f2933"
	faint = "#6b7785"
	grid  = "#e3e8ee"
	paper = "#ffffff"
)

// color returns the color of a verdict.
func color(v result.Verdict) string {
	switch v {
	case result.Pass:
		return "#2f7fb8"
	case result.Miss:
		return "#d55e00"
	case result.Inconclusive:
	}
	return "#a9b3bd"
}

// panel is a group of rows that share a scale.
type panel struct {
	row, metric string
	rows        []result.Row
	ratio       bool // the figures are ratios
	series      []series
}

// Draw writes the picture.
func Draw(w io.Writer, p Picture) error {
	var c canvas
	y := margin + 16
	c.text(margin, y, p.Title, style{size: 20, weight: "600", fill: ink})
	for _, line := range wrap(p.Subtitle, 12, width-2*margin) {
		y += 18
		c.text(margin, y, line, style{size: 12, fill: faint})
	}
	y += 26
	c.legend(margin, y)
	for _, panel := range panelsOf(p.Rows) {
		y += spacing
		if len(panel.series) > 0 {
			y = c.lines(&panel, y)
		} else {
			y = c.bars(&panel, y)
		}
	}
	if _, err := io.WriteString(w, c.document(width, y+margin)); err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	return nil
}

// legend explains the colors and the goal mark.
func (c *canvas) legend(x, y float64) {
	for _, v := range []result.Verdict{result.Pass, result.Miss, result.Inconclusive} {
		c.rect(box{x, y - 10, 12, 12}, color(v), "")
		c.text(x+18, y, string(v), style{size: 12, fill: faint})
		x += 18 + textWidth(string(v), 12) + 22
	}
	c.line(x+6, y-12, x+6, y+3, stroke{ink, 2, "4 3"})
	c.text(x+16, y, "goal", style{size: 12, fill: faint})
}

// panelsOf groups the rows that can share a scale, in their order.
func panelsOf(rows []result.Row) []panel {
	var panels []panel
	for _, r := range rows {
		_, ratio := r.GoalFigure()
		at := slices.IndexFunc(panels, func(p panel) bool { return p.row == r.Row && p.metric == r.Metric && p.ratio == ratio })
		if at < 0 {
			at = len(panels)
			panels = append(panels, panel{row: r.Row, metric: r.Metric, ratio: ratio})
		}
		panels[at].rows = append(panels[at].rows, r)
	}
	for i := range panels {
		panels[i].series = seriesOf(panels[i].rows)
	}
	return panels
}

// heading draws the heading of a panel and returns where the panel continues.
func (c *canvas) heading(p *panel, y float64) float64 {
	c.text(margin, y, p.row, style{size: 14, weight: "600", fill: ink})
	what := p.metric
	if p.ratio {
		what += ", in units of the yardstick"
	}
	c.text(margin, y+18, fit(what, 12, width-2*margin), style{size: 12, fill: faint})
	return y + 30
}

// suffix returns the text after a figure of a panel.
func (p *panel) suffix() string {
	if p.ratio {
		return "×"
	}
	if unit := result.Unit(p.metric); unit != "" {
		return " " + unit
	}
	return ""
}

// goal returns the text of a goal, such as "at most" for a cost.
func (p *panel) goal(r result.Row) string {
	if r.Goal == 0 {
		return ""
	}
	sign := "≤"
	if result.MoreIsBetter(p.metric) {
		sign = "≥"
	}
	return "goal " + sign + " " + result.Figure(r.Goal) + p.suffix()
}

// top returns the largest figure or goal of a panel.
func (p *panel) top() float64 {
	var most float64
	for _, r := range p.rows {
		figure, _ := r.GoalFigure()
		most = max(most, figure, r.Goal)
	}
	return most
}

// series is a group of rows whose cases differ only by the number that they begin with.
type series struct {
	name   string
	points []point
}

// point is a row of a series.
type point struct {
	size float64
	row  result.Row
}

// seriesOf returns the series of the rows if each has at least three points and no row is left
// over, and otherwise none.
func seriesOf(rows []result.Row) []series {
	var all []series
	for _, r := range rows {
		size, name, ok := sizeOf(r.Case)
		if !ok {
			return nil
		}
		at := slices.IndexFunc(all, func(s series) bool { return s.name == name })
		if at < 0 {
			at = len(all)
			all = append(all, series{name: name})
		}
		all[at].points = append(all[at].points, point{size, r})
	}
	for _, s := range all {
		slices.SortStableFunc(s.points, func(a, b point) int { return int(a.size - b.size) })
		if len(s.points) < 3 {
			return nil
		}
	}
	return all
}

// sizeOf extracts the size from the beginning of a case: "20000 services" or "20k services".
func sizeOf(text string) (size float64, rest string, ok bool) {
	first, rest, _ := strings.Cut(text, " ")
	scale := 1.0
	for suffix, by := range map[string]float64{"k": 1e3, "M": 1e6} {
		if number, cut := strings.CutSuffix(first, suffix); cut {
			first, scale = number, by
		}
	}
	size, err := strconv.ParseFloat(first, 64)
	return size * scale, rest, err == nil && size > 0 && strings.TrimRight(first, "0123456789.") == ""
}
