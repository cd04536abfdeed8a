package bpf

//go:generate go tool -modfile ../tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types -output-suffix _test -type race_kind -type race_needs Race bpf/race.c
