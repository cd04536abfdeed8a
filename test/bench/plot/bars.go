package plot

import (
	"fairlead.io/fairlead/test/bench/result"
)

const (
	barStep   = 30.0 // from one bar to the next
	barHeight = 16.0
	labelMost = 300.0 // maximum width of a label
)

// bars draws a bar for each row, with the case to its left, and its figure and goal to its right in
// columns. It returns the lower edge of the panel.
func (c *canvas) bars(p *panel, y float64) float64 {
	y = c.heading(p, y)
	var labels, figures, goals float64
	for _, r := range p.rows {
		labels = max(labels, textWidth(r.Case, 12))
		figures = max(figures, textWidth(p.figure(r), 12))
		goals = max(goals, textWidth(p.goal(r), 12))
	}
	labels = min(labels, labelMost)
	left := margin + labels + 14
	right := width - margin - figures - goals - 34
	scale := ticks(p.top(), 5)
	at := func(v float64) float64 { return left + (right-left)*v/scale[len(scale)-1] }

	bottom := y + float64(len(p.rows))*barStep
	for _, v := range scale {
		c.line(at(v), y, at(v), bottom, stroke{grid, 1, ""})
		c.text(at(v), bottom+16, short(v), style{size: 11, fill: faint, anchor: "middle"})
	}
	for i, r := range p.rows {
		top := y + float64(i)*barStep + (barStep-barHeight)/2
		base := top + barHeight - 4
		figure, _ := r.GoalFigure()
		c.text(left-14, base, fit(r.Case, 12, labels), style{size: 12, fill: ink, anchor: "end"})
		c.rect(box{left, top, max(at(figure)-left, 1), barHeight}, color(r.Verdict), p.title(r))
		if r.Goal != 0 {
			c.line(at(r.Goal), top-5, at(r.Goal), top+barHeight+5, stroke{ink, 2, "4 3"})
		}
		c.text(right+14+figures, base, p.figure(r), style{size: 12, weight: "600", fill: ink, anchor: "end"})
		c.text(right+14+figures+16, base, p.goal(r), style{size: 12, fill: faint})
	}
	c.line(left, y, left, bottom, stroke{faint, 1, ""})
	return bottom + 20
}

// figure returns the text of a row's figure, with its unit.
func (p *panel) figure(r result.Row) string {
	figure, _ := r.GoalFigure()
	return result.Figure(figure) + p.suffix()
}

// title returns the full description of a row.
func (p *panel) title(r result.Row) string {
	text := r.Case + ": " + p.figure(r)
	if p.ratio {
		text += " (" + result.Figure(r.Value) + " against " + result.Figure(r.Yardstick) + " " + r.Metric + ")"
	}
	if goal := p.goal(r); goal != "" {
		text += ", " + goal
	}
	return text + ", " + string(r.Verdict)
}
