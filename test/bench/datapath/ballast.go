package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// wholePiece is how large free memory has to be in one piece to be left to the tables: as much as one entry of a processor's
// table of pages leads to.
const wholePiece = 2 << 20

// layBallast takes the free memory that is in smaller pieces, until it is closed. The kernel gives that away first: the table
// that is made first would be all over the memory and one that is made later in one place, and of a million flows the same
// program takes half as long again in the first.
func layBallast() (*ebpf.Map, error) {
	file, err := os.Open("/proc/buddyinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	page := os.Getpagesize()
	small, free, err := freeMemory(file, page)
	if err != nil {
		return nil, fmt.Errorf("read how free memory is cut up: %w", err)
	}
	// Where most of the memory is like that, so is every table.
	rows := min(small, free/4)/page + 1
	return ebpf.NewMap(&ebpf.MapSpec{
		Name: "ballast", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(page), MaxEntries: uint32(rows),
	})
}

// freeMemory reads what /proc/buddyinfo says of free memory: how many bytes are in small pieces, and how many there are at all.
// A row has how many pieces there are of each size, from that of a page on, each twice the one before.
func freeMemory(buddyinfo io.Reader, page int) (small, free int, err error) {
	lines := bufio.NewScanner(buddyinfo)
	for lines.Scan() {
		_, row, _ := strings.Cut(lines.Text(), "zone")
		fields := strings.Fields(row)
		if len(fields) < 2 {
			return 0, 0, fmt.Errorf("%q is no row of it", lines.Text())
		}
		for order, field := range fields[1:] {
			pieces, err := strconv.Atoi(field)
			if err != nil {
				return 0, 0, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			size := page << order
			free += pieces * size
			if size < wholePiece {
				small += pieces * size
			}
		}
	}
	return small, free, lines.Err()
}
