package main

import (
	"strings"
	"testing"
)

func TestFreeMemory(t *testing.T) {
	const page, kib = 4 << 10, 1 << 10
	for _, c := range []struct {
		name        string
		text        string
		small, free int
		fails       bool
	}{
		{name: "none", text: "Node 0, zone Normal 0 0 0 0 0 0 0 0 0 0 0\n"},
		{name: "whole pieces", text: "Node 0, zone Normal 0 0 0 0 0 0 0 0 0 1 2\n", free: (2 + 2*4) << 20},
		{name: "the largest that is small", text: "Node 0, zone Normal 0 0 0 0 0 0 0 0 3 0 0\n", small: 3 << 20, free: 3 << 20},
		{
			name:  "several zones",
			text:  "Node 0, zone      DMA      1      0      0      0      0      0      0      0      1      1      3\nNode 1, zone   Normal      3      2\n",
			small: (4+1024)*kib + (12+16)*kib, free: (4+1024+2048+3*4096)*kib + (12+16)*kib,
		},
		{name: "no row", text: "Node 0\n", fails: true},
		{name: "no number", text: "Node 0, zone Normal 1 x\n", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			small, free, err := freeMemory(strings.NewReader(c.text), page)
			if (err != nil) != c.fails || small != c.small || free != c.free {
				t.Errorf("%d of %d bytes are in small pieces (%v); want %d of %d", small, free, err, c.small, c.free)
			}
		})
	}
}
