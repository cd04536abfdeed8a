package frames

//go:generate go tool -modfile ../../tools/go.mod bpf2go -go-package frames -target bpfel frames bpf/frames.c
