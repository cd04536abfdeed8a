package progrun

//go:generate go tool -modfile ../../tools/go.mod bpf2go -go-package progrun -target bpfel -no-global-types progrun bpf/progrun.c
