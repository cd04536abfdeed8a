// Package machine says what a benchmark ran on, and how busy that was. A figure without its machine is worth nothing a
// month later, so every result carries one.
//
// Everything comes from files below a root that the caller gives, which is the machine's own in a benchmark and a
// fixture in a test. What a machine does not tell is empty, not an error: containers and virtual machines hide much.
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

// Machine is what does not change during a run.
type Machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`     // online, counted once however many threads they have
	Threads   int    `json:"threads"`   // online logical CPUs
	SMT       bool   `json:"smt"`       // whether two of these share a core
	NUMANodes int    `json:"numaNodes"` // 1 where the kernel knows of none
	MemoryMiB int    `json:"memoryMiB"`
	Governor  string `json:"governor"` // of the CPUs' frequency; empty = the machine does not say
	Virtual   string `json:"virtual"`  // empty = no; else the product, or "yes"
	Kernel    string `json:"kernel"`
	Clang     string `json:"clang"` // that compiled the BPF objects
}

// Read reads a machine from its file system, and from the source tree which clang it takes. The tree may be nil.
func Read(root, tree fs.FS) (Machine, error) {
	text, err := fs.ReadFile(root, "proc/cpuinfo")
	if err != nil {
		return Machine{}, fmt.Errorf("read which CPU this is: %w", err)
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
		return Machine{}, errors.New("read which kernel runs: proc/sys/kernel/osrelease is missing or empty")
	}
	m.Threads, m.Cores = count(root, info)
	m.SMT = m.Threads > m.Cores
	return m, nil
}

// String returns the machine in one line, as it stands at the head of a table.
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

// cpuinfo is what of /proc/cpuinfo is of use: the first value of each key, and how many processors there are.
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

// model is a name on x86, and numbers of the designer on Arm, where the kernel keeps no names.
func (i cpuinfo) model() string {
	if name := i.first["model name"]; name != "" {
		return strings.Join(strings.Fields(name), " ")
	}
	if maker := i.first["CPU implementer"]; maker != "" {
		return fmt.Sprintf("Arm implementer %s part %s", maker, i.first["CPU part"])
	}
	return or(i.first["Model"], i.first["cpu"])
}

// count returns the online logical CPUs and the cores that these are of. Cores are numbered within a package.
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

// virtual looks where firmware and hypervisors leave their names. The CPU's flag is the surest and has no name.
func virtual(root fs.FS, info cpuinfo) string {
	if name := line(root, "sys/hypervisor/type"); name != "" {
		return name
	}
	flagged := slices.Contains(strings.Fields(info.first["flags"]), "hypervisor")
	vendor := line(root, "sys/class/dmi/id/sys_vendor")
	product := strings.TrimSpace(vendor + " " + line(root, "sys/class/dmi/id/product_name"))
	known := regexp.MustCompile(`(?i)qemu|kvm|vmware|virtualbox|xen|virtual machine|amazon ec2|google|bochs|openstack`)
	// The flag is x86's. Elsewhere the name has to do, and on x86 a name alone is a bare-metal instance of a cloud.
	_, x86 := info.first["flags"]
	switch {
	case known.MatchString(product) && (flagged || !x86):
		return product
	case flagged:
		return "yes"
	}
	return ""
}

// clang returns the version that the Makefile pins. The objects themselves are stripped of what compiled them.
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
			kib, _ := strconv.Atoi(f[1]) // 0 is "does not say"
			return kib / 1024
		}
	}
	return 0
}

// parseList parses a list of the kernel's, such as "0-3,8".
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

// line returns the only line of a file, or "" where it is missing.
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
