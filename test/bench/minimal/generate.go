package minimal

//go:generate go tool -modfile ../../tools/go.mod bpf2go -go-package minimal -target bpfel sock bpf/sock.c
//go:generate go tool -modfile ../../tools/go.mod bpf2go -go-package minimal -target bpfel tc bpf/tc.c
//go:generate go tool -modfile ../../tools/go.mod bpf2go -go-package minimal -target bpfel -no-global-types xdp bpf/xdp.c
//go:generate go tool -modfile ../../tools/go.mod bpf2go -go-package minimal -target bpfel redirect bpf/redirect.c
//go:generate go tool -modfile ../../tools/go.mod bpf2go -go-package minimal -target bpfel -no-global-types police bpf/police.c
//go:generate go tool -modfile ../../tools/go.mod bpf2go -go-package minimal -target bpfel judge bpf/judge.c
