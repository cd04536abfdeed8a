// Package machine describes the machine that a benchmark ran on, and how busy it was. Every result
// carries the description, since a figure without its machine is worth nothing a month later.
//
// Everything comes from files below a root that the caller gives: the machine's own in a benchmark,
// a fixture in a test. Values that the machine does not expose are empty, not an error: containers
// and virtual machines hide much.
package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Machine holds the properties that do not change during a run.
type Machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`     // online cores, not counting their threads
	Threads   int    `json:"threads"`   // online logical CPUs
	SMT       bool   `json:"smt"`       // whether two of these share a core
	NUMANodes int    `json:"numaNodes"` // 1 if the kernel knows of none
	MemoryMiB int    `json:"memoryMiB"`
	Governor  string `json:"governor"` // of the CPUs' frequency; empty = unknown
	Virtual   string `json:"virtual"`  // empty = no; otherwise the product, or "yes"
	Kernel    string `json:"kernel"`
	Clang     string `json:"clang"` // version that compiled the BPF objects
}

// Read reads the machine's properties from its file system, and the version of clang from the
// source tree. The tree may be nil.
func Read(root, tree fs.FS) (Machine, error) {
	text, err := fs.ReadFile(root, "proc/cpuinfo")
	if err != nil {
		return Machine{}, fmt.Errorf("identify the CPU: %w", err)
	}
	info := parseInfo(string(text))
	m := Machine{
		CPU:       info.model(),
		MemoryMiB: memory(root),
		NUMANodes: max(1, len(parseList(line(root, "sys/devices/system/node/online")))),
		Governor:  governor(root),
		Virtual:   virtual(root, info),
		Kernel:    line(root, "proc/sys/kernel/osrelease"),
		Clang:     clang(tree),
	}
	if m.Kernel == "" {
		return Machine{}, errors.New("identify the kernel: proc/sys/kernel/osrelease is missing or empty")
	}
	m.Threads, m.Cores = count(root, info)
	m.SMT = m.Threads > m.Cores
	return m, nil
}

// String returns the machine in one line, the headline of a table.
func (m Machine) String() string {
	parts := []string{or(m.CPU, "unknown CPU"), plural(m.Cores, "core")}
	if m.SMT {
		parts[1] += fmt.Sprintf(" with %d threads", m.Threads)
	} else {
		parts[1] += " without SMT"
	}
	parts = append(parts, plural(m.NUMANodes, "NUMA node"), fmt.Sprintf("%d MiB", m.MemoryMiB))
	switch m.Virtual {
	case "":
	case "yes":
		parts = append(parts, "virtual")
	default:
		parts = append(parts, "virtual ("+m.Virtual+")")
	}
	parts = append(parts, "governor "+or(m.Governor, "unknown"), "Linux "+m.Kernel, "clang "+or(m.Clang, "unknown"))
	return strings.Join(parts, ", ")
}

// cpuinfo is the useful part of /proc/cpuinfo: the first value of each key, and the number of
// processors.
type cpuinfo struct {
	first      map[string]string
	processors int
}

func parseInfo(text string) cpuinfo {
	info := cpuinfo{first: map[string]string{}}
	for row := range strings.Lines(text) {
		key, value, found := strings.Cut(row, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !found {
			continue
		}
		if key == "processor" {
			info.processors++
		}
		if _, seen := info.first[key]; !seen {
			info.first[key] = value
		}
	}
	return info
}

// model returns a name on x86, and the designer's numbers on Arm, where the kernel has no names.
func (i cpuinfo) model() string {
	if name := i.first["model name"]; name != "" {
		return strings.Join(strings.Fields(name), " ")
	}
	if maker := i.first["CPU implementer"]; maker != "" {
		return fmt.Sprintf("Arm implementer %s part %s", maker, i.first["CPU part"])
	}
	return or(i.first["Model"], i.first["cpu"])
}

// count returns the numbers of online logical CPUs and of their cores. Core numbers are unique
// within a package only.
func count(root fs.FS, info cpuinfo) (threads, cores int) {
	seen := map[string]bool{}
	online := parseList(line(root, "sys/devices/system/cpu/online"))
	for _, cpu := range online {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
		id := line(root, dir+"core_id")
		if id == "" {
			id = "cpu" + strconv.Itoa(cpu)
		}
		seen[line(root, dir+"physical_package_id")+"/"+line(root, dir+"die_id")+"/"+id] = true
	}
	if len(online) == 0 {
		return info.processors, info.processors
	}
	return len(online), len(seen)
}

func governor(root fs.FS) string {
	names, err := fs.Glob(root, "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
	if err != nil {
		return ""
	}
	var all []string
	for _, name := range names {
		all = append(all, line(root, name))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " and ")
}

// virtual looks for the names that firmware and hypervisors leave. The CPU flag is most reliable
// but has no name.
func virtual(root fs.FS, info cpuinfo) string {
	if name := line(root, "sys/hypervisor/type"); name != "" {
		return name
	}
	flagged := slices.Contains(strings.Fields(info.first["flags"]), "hypervisor")
	vendor := line(root, "sys/class/dmi/id/sys_vendor")
	product := strings.TrimSpace(vendor + " " + line(root, "sys/class/dmi/id/product_name"))
	known := regexp.MustCompile(`(?i)qemu|kvm|vmware|virtualbox|xen|virtual machine|amazon ec2|google|bochs|openstack`)
	// The flag exists on x86 only. Elsewhere the name must do; on x86, a name without the flag is a
	// cloud's bare-metal instance.
	_, x86 := info.first["flags"]
	switch {
	case known.MatchString(product) && (flagged || !x86):
		return product
	case flagged:
		return "yes"
	}
	return ""
}

// clang returns the version that the Makefile pins. The objects themselves do not record their
// compiler, since they are stripped.
func clang(tree fs.FS) string {
	if tree == nil {
		return ""
	}
	text, err := fs.ReadFile(tree, "Makefile")
	if err != nil {
		return ""
	}
	match := regexp.MustCompile(`(?m)^CLANG_MAJOR\s*:?=\s*(\d+)`).FindSubmatch(text)
	if match == nil {
		return ""
	}
	return string(match[1])
}

func memory(root fs.FS) int {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for row := range strings.Lines(string(text)) {
		if f := strings.Fields(row); len(f) >= 2 && f[0] == "MemTotal:" {
			kib, _ := strconv.Atoi(f[1]) // 0 means unknown
			return kib / 1024
		}
	}
	return 0
}

// parseList parses one of the kernel's lists, such as "0-3,8".
func parseList(text string) []int {
	var list []int
	for _, part := range strings.Split(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			return list
		}
		to, err := strconv.Atoi(last)
		if err != nil {
			return list
		}
		for n := from; n <= to; n++ {
			list = append(list, n)
		}
	}
	return list
}

// line returns the only line of a file, or "" if the file is missing.
func line(root fs.FS, name string) string {
	text, err := fs.ReadFile(root, path.Clean(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
