package model

import (
	"fmt"
	"strconv"
	"strings"
)

// PortRange is a range of ports, including both ends, as options and settings of the kernel name them.
type PortRange struct{ First, Last uint16 }

// ParsePortRange parses FIRST-LAST, or a single port.
func ParsePortRange(text string) (PortRange, error) {
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		last = first
	}
	from, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	to, toErr := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err != nil || toErr != nil || from == 0 || from > to {
		return PortRange{}, fmt.Errorf("%q is not a range of ports such as 1024-29999", text)
	}
	return PortRange{uint16(from), uint16(to)}, nil
}

// String returns the format that ParsePortRange reads.
func (p PortRange) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// Len returns the number of ports.
func (p PortRange) Len() int { return int(p.Last) - int(p.First) + 1 }

// Overlaps reports whether the ranges have a port in common.
func (p PortRange) Overlaps(q PortRange) bool { return p.First <= q.Last && q.First <= p.Last }
