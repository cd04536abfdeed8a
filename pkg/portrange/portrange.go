// Package portrange has ranges of ports, as options and settings of the kernel name them.
package portrange

import (
	"fmt"
	"strconv"
	"strings"
)

// Ports is a range of ports, including both ends.
type Ports struct{ First, Last uint16 }

// Parse parses FIRST-LAST, or a single port.
func Parse(text string) (Ports, error) {
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		last = first
	}
	from, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	to, toErr := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err != nil || toErr != nil || from == 0 || from > to {
		return Ports{}, fmt.Errorf("%q is not a range of ports such as 1024-29999", text)
	}
	return Ports{uint16(from), uint16(to)}, nil
}

// String returns the format that Parse reads.
func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// Len returns the number of ports.
func (p Ports) Len() int { return int(p.Last) - int(p.First) + 1 }

// Overlaps reports whether the ranges have a port in common.
func (p Ports) Overlaps(q Ports) bool { return p.First <= q.Last && q.First <= p.Last }
