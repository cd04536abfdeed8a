package plot

import (
	"math"
	"slices"

	"fairlead.io/fairlead/test/bench/result"
)

const (
	plotHeight = 190.0
	plotLeft   = margin + 56
	plotRight  = width - margin - 150 // the goals are to its right
)

// seriesColor returns the color of a series' line, which is never a verdict's.
func seriesColor(i int) string {
	list := []string{"#44546a", "#8a6fb0", "#3a8f7b", "#b0893a"}
	return list[i%len(list)]
}

// plane converts sizes and figures to coordinates. Sizes use a logarithmic scale, as suits 1k, 20k
// and 100k.
type plane struct {
	top, bottom   float64
	least, most   float64 // logarithms of the sizes
	highestFigure float64
}

func (a plane) x(size float64) float64 {
	const inset = 40 // keeps the outermost points off the edge
	if a.most == a.least {
		return (plotLeft + plotRight) / 2
	}
	return plotLeft + inset + (plotRight-plotLeft-2*inset)*(math.Log(size)-a.least)/(a.most-a.least)
}

func (a plane) y(figure float64) float64 {
	return a.bottom - (a.bottom-a.top)*figure/a.highestFigure
}

// lines draws the series of a panel over the size, and returns the lower edge of the panel.
func (c *canvas) lines(p *panel, y float64) float64 {
	y = c.heading(p, y)
	y = c.names(p, y+6)
	var sizes []float64
	for _, s := range p.series {
		for _, point := range s.points {
			sizes = append(sizes, point.size)
		}
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	scale := ticks(p.top()*1.08, 4)
	area := plane{
		top: y, bottom: y + plotHeight, least: math.Log(sizes[0]), most: math.Log(sizes[len(sizes)-1]),
		highestFigure: scale[len(scale)-1],
	}
	for _, v := range scale {
		c.line(plotLeft, area.y(v), plotRight, area.y(v), stroke{grid, 1, ""})
		c.text(plotLeft-10, area.y(v)+4, short(v), style{size: 11, fill: faint, anchor: "end"})
	}
	end := math.Inf(-1) // right end of the previous label
	for _, size := range sizes {
		half := textWidth(short(size), 11)/2 + 3
		c.line(area.x(size), area.bottom, area.x(size), area.bottom+5, stroke{faint, 1, ""})
		if area.x(size)-half >= end {
			c.text(area.x(size), area.bottom+18, short(size), style{size: 11, fill: faint, anchor: "middle"})
			end = area.x(size) + half
		}
	}
	c.line(plotLeft, area.bottom, plotRight, area.bottom, stroke{faint, 1, ""})
	c.goals(p, area)
	for i, s := range p.series {
		c.curve(p, area, s, seriesColor(i))
	}
	return area.bottom + 24
}

// names draws the name of each series in its color, in as many lines as needed.
func (c *canvas) names(p *panel, y float64) float64 {
	x := plotLeft
	for i, s := range p.series {
		name := fit(s.name, 12, plotRight-plotLeft-30)
		if x > plotLeft && x+26+textWidth(name, 12) > plotRight {
			x, y = plotLeft, y+18
		}
		c.line(x, y, x+18, y, stroke{seriesColor(i), 2.5, ""})
		c.text(x+26, y+4, name, style{size: 12, fill: ink})
		x += 26 + textWidth(name, 12) + 24
	}
	return y + 18
}

// goals draws the goal across the panel if all points share it, and otherwise a mark at the size of
// each point.
func (c *canvas) goals(p *panel, area plane) {
	goal := p.rows[0].Goal
	same := !slices.ContainsFunc(p.rows, func(r result.Row) bool { return r.Goal != goal })
	if same && goal != 0 {
		c.line(plotLeft, area.y(goal), plotRight, area.y(goal), stroke{ink, 2, "4 3"})
		c.text(plotRight+10, area.y(goal)+4, p.goal(p.rows[0]), style{size: 12, fill: faint})
	}
	if same {
		return
	}
	for _, s := range p.series {
		for _, point := range s.points {
			if y := area.y(point.row.Goal); point.row.Goal != 0 {
				c.line(area.x(point.size)-20, y, area.x(point.size)+20, y, stroke{ink, 2, "4 3"})
			}
		}
	}
}

// curve draws one series: its line, a dot at each point in the color of the verdict, and the
// figure above it. In a panel of several series the figures would overlap, so they are only in the
// dots' titles.
func (c *canvas) curve(p *panel, area plane, s series, colorOfLine string) {
	var places []float64
	for _, point := range s.points {
		figure, _ := point.row.GoalFigure()
		places = append(places, area.x(point.size), area.y(figure))
	}
	c.polyline(places, colorOfLine)
	for i, point := range s.points {
		x, y := places[2*i], places[2*i+1]
		c.circle(x, y, color(point.row.Verdict), p.title(point.row))
		if len(p.series) == 1 {
			c.text(x, y-10, p.figure(point.row), style{size: 12, weight: "600", fill: ink, anchor: "middle", halo: true})
		}
	}
}
