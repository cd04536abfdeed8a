package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/kernels/debian"
	"fairlead.io/fairlead/test/kernels/vm"
)

const (
	job      = "bandwidth"
	found    = "bandwidth.json"
	memory   = 2048 // MiB, for two agents and the packets in queues
	jobLimit = 40 * time.Minute
)

// modules are the kernel modules that agents, pods and all kinds of limits use.
var modules = []string{"veth", "sch_ingress", "cls_bpf", "sch_fq", "sch_fq_codel", "sch_htb", "sch_tbf", "tcp_diag", "udp_diag"}

// inMachines measures on one kernel after another, one machine at a time.
func (o *options) inMachines(ctx context.Context, report *result.Report) error {
	pins, err := debian.Pins()
	if err != nil {
		return err
	}
	pins, err = debian.Select(pins, strings.Fields(o.kernels))
	if err != nil {
		return err
	}
	for _, pin := range pins {
		kernel, err := debian.Cached(pin)
		if err != nil {
			return fmt.Errorf("%w (go run ./test/kernels -fetch %s)", err, pin.Kernel)
		}
		if err := o.inMachine(ctx, report, kernel); err != nil {
			return fmt.Errorf("kernel %s: %w", pin.Kernel, err)
		}
	}
	return nil
}

// inMachine runs the benchmark with -here in a virtual machine, and takes over its results.
func (o *options) inMachine(ctx context.Context, report *result.Report, kernel *debian.Kernel) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	m := &vm.Machine{Image: kernel.Image, Busybox: busybox, Memory: memory, Dir: filepath.Join(filepath.Dir(o.output), "vm-"+kernel.Kernel)}
	loaded, err := kernel.Modules(busybox, modules...)
	if err != nil {
		return err
	}
	for _, module := range loaded {
		m.Modules = append(m.Modules, vm.File{Path: "/modules.d/" + module.Name + ".ko", Mode: 0o644, Content: module.Content})
	}
	for _, name := range []string{"bandwidth", "fairlead", "fairlead-cni"} {
		m.Files = append(m.Files, vm.File{Path: vm.JobDir(job) + "/" + name, Mode: 0o755, Source: filepath.Join(o.binaries, name)})
	}
	// Only the script knows the folder that files are returned from.
	results, err := m.Run(ctx, []vm.Job{{Name: job, Limit: jobLimit, Args: []string{
		"sh", "-c", `exec ./bandwidth -here -binaries=` + vm.JobDir(job) + ` -output="$JOB_OUT/` + found + `" "$@"`, "sh",
		"-only=" + o.only, "-rounds=" + strconv.Itoa(o.rounds), "-window=" + o.window.String(),
	}}})
	if err != nil {
		return err
	}
	log, err := os.ReadFile(results[0].Log)
	if err != nil {
		return err
	}
	fmt.Fprintf(report.Out(), "\n== Linux %s in a virtual machine\n%s", kernel.Kernel, log)
	if results[0].Code != 0 {
		return fmt.Errorf("bandwidth ended with exit code %d", results[0].Code)
	}
	return takeOver(report, filepath.Join(results[0].Out, found), "Linux "+kernel.Kernel)
}

// takeOver adds rows that were measured elsewhere.
func takeOver(report *result.Report, path, where string) error {
	rows, err := result.Load(path)
	if err != nil {
		return err
	}
	about, err := result.LoadAbout(path)
	if err != nil {
		return err
	}
	details := map[result.Key]result.Detail{}
	for _, a := range about {
		for _, d := range a.Details {
			details[d.Key()] = d
		}
	}
	for _, row := range rows {
		detail, measured := details[row.Key()]
		row.Row = strings.TrimPrefix(row.Row, "bandwidth/")
		row.Case = where + ", " + row.Case
		if measured {
			report.AddMeasured(row, detail)
		} else {
			report.Add(row)
		}
	}
	return nil
}
