package policy

import (
	"maps"
	"slices"
)

// numbers gives texts small numbers, from 1, which they keep from one compilation to the next. A
// number that is given up is not given again by the same Update, so that no row means two things while
// tables are replaced.
type numbers struct {
	now, before map[string]uint32
	last        uint32
	free        []uint32 // the next to give is the last
	retired     []uint32 // given up since release
}

func newNumbers() *numbers { return &numbers{now: map[string]uint32{}} }

// numbersFrom returns numbers from first.
func numbersFrom(first uint32) *numbers { return &numbers{now: map[string]uint32{}, last: first - 1} }

// begin starts a compilation: what is not asked for until finish is given up.
func (n *numbers) begin() { n.before, n.now = n.now, make(map[string]uint32, len(n.now)) }

// keep takes all texts as asked for that had a number before.
func (n *numbers) keep() { n.now, n.before = n.before, nil }

// of returns the number of a text. fresh says that it had none.
func (n *numbers) of(text string) (number uint32, fresh bool) {
	if number, found := n.now[text]; found {
		return number, false
	}
	number, found := n.before[text]
	switch {
	case found:
	case len(n.free) > 0:
		number = n.free[len(n.free)-1]
		n.free = n.free[:len(n.free)-1]
	default:
		n.last++
		number = n.last
	}
	n.now[text] = number
	return number, true
}

// same reports whether what was asked for since begin is what was before it.
func (n *numbers) same() bool {
	for text := range n.now {
		if _, found := n.before[text]; !found {
			return false
		}
	}
	return len(n.now) == len(n.before)
}

func (n *numbers) finish() {
	for text := range n.now {
		delete(n.before, text)
	}
	n.retired = append(n.retired, slices.Collect(maps.Values(n.before))...)
	n.before = nil
}

// release has the numbers given again that were given up.
func (n *numbers) release() {
	if len(n.retired) == 0 {
		return
	}
	n.free = append(n.free, n.retired...)
	slices.SortFunc(n.free, func(a, b uint32) int { return int(b) - int(a) })
	n.retired = nil
}
