package main

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

// findTools returns the path of a static busybox once everything that this needs is there. As root it installs what is
// missing.
func findTools(ctx context.Context) (busybox string, err error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("find tools: the kernels are of amd64, and so has to be this machine")
	}
	missing := missingPackages()
	if len(missing) > 0 {
		if err := install(ctx, missing); err != nil {
			return "", err
		}
	}
	if missing := missingPackages(); len(missing) > 0 {
		return "", fmt.Errorf("find tools: %s is installed, and still it is not there", strings.Join(missing, " "))
	}
	return exec.LookPath("busybox")
}

// missingPackages returns the packages of Debian and Ubuntu that would bring what is not there.
func missingPackages() []string {
	var missing []string
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		missing = append(missing, "qemu-system-x86")
	}
	if path, err := exec.LookPath("busybox"); err != nil || !isStatic(path) {
		missing = append(missing, "busybox-static")
	}
	return missing
}

// isStatic reports whether a program runs without the libraries of this machine.
func isStatic(path string) bool {
	file, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	return !slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

func install(ctx context.Context, packages []string) error {
	list := strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("find tools: this needs %s, as Debian calls them; as root: apt-get install %s", list, list)
	}
	fmt.Printf("installing %s\n", list)
	for _, args := range [][]string{
		{"update", "-qq"},
		append([]string{"install", "-qq", "-y", "--no-install-recommends"}, packages...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		// What it says names the machine's mirror; apt-get by hand tells it to whoever wants to know.
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("install %s: apt-get %s: %w", list, args[0], err)
		}
	}
	return nil
}
