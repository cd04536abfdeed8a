// Command kernels runs the project's own tests on kernels other than the running one: it boots each
// of the pinned Debian kernels, or the named ones, in a virtual machine and runs static test
// binaries there. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"fairlead.io/fairlead/test/kernels/debian"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	output := flag.String("output", "_output/kernels", "`directory` for logs and results")
	only := flag.String("only", "", "run only the suites with these `names`")
	short := flag.Bool("short", false, "run suites for which one kernel is almost enough only on that one")
	fetch := flag.Bool("fetch", false, "fetch the kernels without running anything")
	shell := flag.Bool("shell", false, "boot the named kernel and open a shell")
	pin := flag.Bool("pin", false, "print the pins with the newest package of every kernel")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: kernels [options] [KERNEL...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	pins, err := debian.Pins()
	if err != nil {
		return err
	}
	if *pin {
		return printNewest(ctx, pins)
	}
	selected, err := debian.Select(pins, flag.Args())
	if err != nil {
		return err
	}
	busybox, err := findTools(ctx)
	if err != nil {
		return err
	}
	kernels, err := fetchAll(ctx, selected)
	if err != nil || *fetch {
		return err
	}
	suites, err := chooseSuites(strings.Fields(*only))
	if err != nil {
		return err
	}
	r, err := newRunner(busybox, *output, suites)
	if err != nil {
		return err
	}
	defer r.close()
	r.short = *short
	if *shell {
		if len(flag.Args()) != 1 {
			return errors.New("open shell: name one kernel")
		}
		return r.shell(ctx, kernels[0])
	}
	return r.runAll(ctx, kernels)
}

func fetchAll(ctx context.Context, pins []debian.Pin) ([]*debian.Kernel, error) {
	var kernels []*debian.Kernel
	for _, pin := range pins {
		kernel, err := debian.Fetch(ctx, pin, os.Stdout)
		if err != nil {
			return nil, err
		}
		kernels = append(kernels, kernel)
	}
	return kernels, nil
}

// printNewest prints nothing unless all kernels are found, so that the output can replace the file.
func printNewest(ctx context.Context, pins []debian.Pin) error {
	for i, pin := range pins {
		newest, err := debian.Newest(ctx, pin)
		if err != nil {
			return fmt.Errorf("pin kernel %s: %w", pin.Kernel, err)
		}
		pins[i] = newest
	}
	return debian.WritePins(os.Stdout, pins)
}
