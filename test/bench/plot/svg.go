package plot

import (
	"fmt"
	"strconv"
	"strings"
)

// canvas collects the elements of a picture.
type canvas struct{ body strings.Builder }

// style is the style of a text. The anchor is "" for text that begins at its position.
type style struct {
	size                 float64
	weight, fill, anchor string
	halo                 bool // keeps the text readable on top of a line
}

// stroke is the style of a line. The dashes are "" for a solid one.
type stroke struct {
	color  string
	width  float64
	dashes string
}

// box is a rectangle: its upper left corner and its size.
type box struct{ x, y, width, height float64 }

func (c *canvas) add(format string, arguments ...any) {
	fmt.Fprintf(&c.body, "  "+format+"\n", arguments...)
}

func (c *canvas) text(x, y float64, text string, s style) {
	attributes := fmt.Sprintf(`x="%s" y="%s" font-size="%s" fill="%s"`, num(x), num(y), num(s.size), s.fill)
	if s.weight != "" {
		attributes += fmt.Sprintf(` font-weight="%s"`, s.weight)
	}
	if s.anchor != "" {
		attributes += fmt.Sprintf(` text-anchor="%s"`, s.anchor)
	}
	if s.halo {
		attributes += fmt.Sprintf(` stroke="%s" stroke-width="4" stroke-linejoin="round" paint-order="stroke"`, paper)
	}
	c.add("<text %s>%s</text>", attributes, escape(text))
}

// rect draws a box. Its title is shown when the pointer is over it.
func (c *canvas) rect(b box, fill, title string) {
	c.add(`<rect x="%s" y="%s" width="%s" height="%s" rx="2" fill="%s">%s</rect>`,
		num(b.x), num(b.y), num(b.width), num(b.height), fill, titled(title))
}

func (c *canvas) circle(x, y float64, fill, title string) {
	c.add(`<circle cx="%s" cy="%s" r="5" fill="%s" stroke="%s" stroke-width="1.5">%s</circle>`, num(x), num(y), fill, paper, titled(title))
}

func (c *canvas) line(x1, y1, x2, y2 float64, s stroke) {
	dashes := ""
	if s.dashes != "" {
		dashes = fmt.Sprintf(` stroke-dasharray="%s"`, s.dashes)
	}
	c.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-width="%s"%s/>`,
		num(x1), num(y1), num(x2), num(y2), s.color, num(s.width), dashes)
}

// polyline draws a line through points, given as alternating x and y coordinates.
func (c *canvas) polyline(places []float64, color string) {
	var points []string
	for i := 0; i+1 < len(places); i += 2 {
		points = append(points, num(places[i])+","+num(places[i+1]))
	}
	c.add(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2.5" stroke-linejoin="round"/>`, strings.Join(points, " "), color)
}

// document returns the whole picture. It draws a background, since a viewer's may be dark.
func (c *canvas) document(width, height float64) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]s" height="%[2]s" viewBox="0 0 %[1]s %[2]s"`+
		` font-family="'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif">
  <rect width="100%%" height="100%%" fill="%[3]s"/>
%[4]s</svg>
`, num(width), num(height), paper, c.body.String())
}

// num formats a coordinate.
func num(v float64) string {
	text := strconv.FormatFloat(v, 'f', 1, 64)
	return strings.TrimSuffix(text, ".0")
}

func titled(text string) string {
	if text == "" {
		return ""
	}
	return "<title>" + escape(text) + "</title>"
}

func escape(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}
