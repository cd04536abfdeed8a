package plot

import "strings"

// textWidth returns the maximum width of a text in any font that a viewer may use, namely in the
// widest one.
func textWidth(text string, size float64) float64 {
	var em float64
	for _, r := range text {
		switch {
		case strings.ContainsRune("ijl|'", r):
			em += 0.29
		case strings.ContainsRune(" .,:;!", r):
			em += 0.33
		case strings.ContainsRune("frt()[]/-", r):
			em += 0.42
		case strings.ContainsRune("mwMW@%×≤≥", r):
			em += 0.96
		case r >= 'A' && r <= 'Z':
			em += 0.74
		default:
			em += 0.64
		}
	}
	return em * size
}

// fit cuts a text to a width.
func fit(text string, size, most float64) string {
	if textWidth(text, size) <= most {
		return text
	}
	runes := []rune(text)
	for len(runes) > 0 && textWidth(string(runes)+"…", size) > most {
		runes = runes[:len(runes)-1]
	}
	return strings.TrimRight(string(runes), " ,") + "…"
}

// wrap breaks a text between words into lines of a given width. A word that is wider gets its own
// line.
func wrap(text string, size, most float64) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch longer := line + " " + word; {
		case line == "":
			line = word
		case textWidth(longer, size) <= most:
			line = longer
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
