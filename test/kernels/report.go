package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// kernelResult is the outcome on one kernel.
type kernelResult struct {
	kernel, release string
	took            time.Duration
	suites          []suiteResult
	instructions    map[string]uint32 // by program; nil if no program was loaded
}

type suiteResult struct {
	name, verdict string
	ok            bool
	took, cpu     time.Duration
}

// add merges the outcome of another machine with the same kernel.
func (k *kernelResult) add(other kernelResult) {
	k.took += other.took
	k.suites = append(k.suites, other.suites...)
	if other.instructions != nil {
		k.instructions = other.instructions
	}
}

// readInstructions reads the file that the suite which loads every program has left in the kernel's
// directory.
func (k *kernelResult) readInstructions(dir string) error {
	content, err := os.ReadFile(filepath.Join(dir, "programs", "instructions.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read instructions: %w", err)
	}
	if err := json.Unmarshal(content, &k.instructions); err != nil {
		return fmt.Errorf("read instructions: %w", err)
	}
	return nil
}

// report prints the tables and writes instructions.json. It returns an error if a suite failed.
func report(dir string, results []kernelResult) error {
	fmt.Println()
	passed, failed := 0, 0
	for _, k := range results {
		fmt.Printf("%-6s %-26s %5.1f min\n", k.kernel, k.release, k.took.Minutes())
		for _, s := range k.suites {
			if s.ok {
				passed++
			} else {
				failed++
				fmt.Printf("       FAILED %s: %s\n", s.name, s.verdict)
			}
		}
	}
	if err := printInstructions(os.Stdout, results); err != nil {
		return err
	}
	if err := writeInstructions(filepath.Join(dir, "instructions.json"), results); err != nil {
		return err
	}
	fmt.Printf("\nsuites: %d passed, %d failed\n", passed, failed)
	if failed > 0 {
		return fmt.Errorf("%d of %d suites failed; logs are in %s", failed, passed+failed, dir)
	}
	return nil
}

// programs returns the names of all programs loaded on any kernel.
func programs(results []kernelResult) []string {
	names := map[string]bool{}
	for _, k := range results {
		for name := range k.instructions {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// walked returns the number of instructions that the verifier processed for a program, nil if
// unknown.
func (k kernelResult) walked(program string) *uint32 {
	if n := k.instructions[program]; n > 0 {
		return &n
	}
	return nil // not loaded, or loaded by a kernel before 5.16, which does not say
}

func printInstructions(w io.Writer, results []kernelResult) error {
	names := programs(results)
	if len(names) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nInstructions that the verifier walked:")
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := []string{"program"}
	for _, k := range results {
		row = append(row, k.kernel)
	}
	for _, name := range append([]string{""}, names...) {
		if name != "" {
			row = []string{name}
			for _, k := range results {
				cell := "n/a"
				if n := k.walked(name); n != nil {
					cell = strconv.FormatUint(uint64(*n), 10)
				}
				row = append(row, cell)
			}
		}
		fmt.Fprintln(table, strings.Join(row, "\t")+"\t")
	}
	return table.Flush()
}

// writeInstructions writes two maps: from kernels to releases, and from programs to instructions;
// null is "n/a".
func writeInstructions(path string, results []kernelResult) error {
	type entry struct {
		Release  string             `json:"release"`
		Programs map[string]*uint32 `json:"programs"`
	}
	kernels := map[string]entry{}
	for _, k := range results {
		e := entry{Release: k.release, Programs: map[string]*uint32{}}
		for _, name := range programs(results) {
			e.Programs[name] = k.walked(name)
		}
		kernels[k.kernel] = e
	}
	text, err := json.MarshalIndent(kernels, "", "  ")
	if err != nil {
		return fmt.Errorf("write instructions: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write instructions: %w", err)
	}
	return nil
}
