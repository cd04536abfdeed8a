// Package netns tests the data path with real sockets, in network namespaces and cgroups of the tests' own.
package netns

//go:generate go tool -modfile ../tools/go.mod bpf2go -go-package netns -target bpfel -no-global-types -output-suffix _test Select bpf/select.c
