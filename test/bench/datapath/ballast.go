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

// wholePiece is the size from which a contiguous piece of free memory is left to the tables: the
// memory that one entry of a page directory maps.
const wholePiece = 2 << 20

// layBallast takes the free memory that is in smaller pieces, until the map is closed. The kernel
// hands out small pieces first: the table made first would be scattered over the memory and a later
// one contiguous, and with a million flows the same program takes half as long again on the
// scattered one.
func layBallast() (*ebpf.Map, error) {
	file, err := os.Open("/proc/buddyinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	page := os.Getpagesize()
	small, free, err := freeMemory(file, page)
	if err != nil {
		return nil, fmt.Errorf("read the fragmentation of free memory: %w", err)
	}
	// If most of the memory is fragmented, so are all tables.
	rows := min(small, free/4)/page + 1
	return ebpf.NewMap(&ebpf.MapSpec{
		Name: "ballast", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(page), MaxEntries: uint32(rows),
	})
}

// freeMemory parses /proc/buddyinfo and returns the bytes of free memory in small pieces and in
// total. A row has the number of free pieces of each size, starting with one page and doubling from
// column to column.
func freeMemory(buddyinfo io.Reader, page int) (small, free int, err error) {
	lines := bufio.NewScanner(buddyinfo)
	for lines.Scan() {
		_, row, _ := strings.Cut(lines.Text(), "zone")
		fields := strings.Fields(row)
		if len(fields) < 2 {
			return 0, 0, fmt.Errorf("%q is not a row of it", lines.Text())
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
