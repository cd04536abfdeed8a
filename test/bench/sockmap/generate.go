package main

//go:generate go tool -modfile ../../tools/go.mod bpf2go -go-package main -target bpfel relay bpf/relay.c
