package machine

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// files makes a file system from lines of the form "NAME CONTENT"; \n in the content is a newline.
func files(lines ...string) fstest.MapFS {
	tree := fstest.MapFS{}
	for _, l := range lines {
		name, content, _ := strings.Cut(l, " ")
		tree[name] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(content, `\n`, "\n") + "\n")}
	}
	return tree
}

// fixture is a machine as described by its files.
type fixture struct {
	name string
	root fs.FS
	tree fs.FS
	want Machine
	text string
}

// ordinary returns machines such as benchmarks run on.
func ordinary() []fixture {
	makefile := files(`Makefile # CLANG_MAJOR := 3\nCLANG_MAJOR := 19\nCLANG := clang-$(CLANG_MAJOR)`)
	return []fixture{
		{
			name: "a virtual machine of which little is known",
			root: files(
				`proc/cpuinfo processor	: 0\nmodel name	: AMD EPYC\nflags		: fpu hypervisor sse\n\nprocessor	: 1\nmodel name	: AMD EPYC\nflags		: fpu hypervisor sse`,
				`proc/meminfo MemTotal:        8151234 kB\nMemFree: 1 kB`,
				`proc/sys/kernel/osrelease 6.18.5`,
				`sys/devices/system/cpu/online 0-1`,
				`sys/devices/system/cpu/cpu0/topology/core_id 0`, `sys/devices/system/cpu/cpu0/topology/physical_package_id 0`,
				`sys/devices/system/cpu/cpu1/topology/core_id 1`, `sys/devices/system/cpu/cpu1/topology/physical_package_id 0`,
				`sys/devices/system/node/online 0`,
			),
			tree: makefile,
			want: Machine{
				CPU: "AMD EPYC", Cores: 2, Threads: 2, NUMANodes: 1, MemoryMiB: 7960, Virtual: "yes", Kernel: "6.18.5", Clang: "19",
			},
			text: "AMD EPYC, 2 cores without SMT, 1 NUMA node, 7960 MiB, virtual, governor unknown, Linux 6.18.5, clang 19",
		},
		{
			name: "a server with two sockets, SMT and one CPU offline",
			root: files(
				`proc/cpuinfo processor : 0\nmodel name : Intel(R)  Xeon(R)   Gold\nflags : fpu sse`,
				`proc/sys/kernel/osrelease 6.12.0-1-amd64`,
				`sys/devices/system/cpu/online 0-2,4-7`,
				`sys/devices/system/cpu/cpu0/topology/core_id 0`, `sys/devices/system/cpu/cpu0/topology/physical_package_id 0`,
				`sys/devices/system/cpu/cpu1/topology/core_id 1`, `sys/devices/system/cpu/cpu1/topology/physical_package_id 0`,
				`sys/devices/system/cpu/cpu2/topology/core_id 0`, `sys/devices/system/cpu/cpu2/topology/physical_package_id 1`,
				`sys/devices/system/cpu/cpu3/topology/core_id 1`, `sys/devices/system/cpu/cpu3/topology/physical_package_id 1`,
				`sys/devices/system/cpu/cpu4/topology/core_id 0`, `sys/devices/system/cpu/cpu4/topology/physical_package_id 0`,
				`sys/devices/system/cpu/cpu5/topology/core_id 1`, `sys/devices/system/cpu/cpu5/topology/physical_package_id 0`,
				`sys/devices/system/cpu/cpu6/topology/core_id 0`, `sys/devices/system/cpu/cpu6/topology/physical_package_id 1`,
				`sys/devices/system/cpu/cpu7/topology/core_id 1`, `sys/devices/system/cpu/cpu7/topology/physical_package_id 1`,
				`sys/devices/system/cpu/cpu0/cpufreq/scaling_governor powersave`,
				`sys/devices/system/cpu/cpu1/cpufreq/scaling_governor performance`,
				`sys/devices/system/cpu/cpu2/cpufreq/scaling_governor performance`,
				`sys/devices/system/node/online 0-1`,
				`sys/class/dmi/id/sys_vendor Amazon EC2`, `sys/class/dmi/id/product_name c5.metal`,
			),
			tree: makefile,
			want: Machine{
				CPU: "Intel(R) Xeon(R) Gold", Cores: 4, Threads: 7, SMT: true, NUMANodes: 2,
				Governor: "performance and powersave", Kernel: "6.12.0-1-amd64", Clang: "19",
			},
			text: "Intel(R) Xeon(R) Gold, 4 cores with 7 threads, 2 NUMA nodes, 0 MiB, governor performance and powersave, " +
				"Linux 6.12.0-1-amd64, clang 19",
		},
	}
}

// odd returns machines that expose properties in other places, or not at all.
func odd() []fixture {
	return []fixture{
		{
			name: "an Arm virtual machine without a source tree",
			root: files(
				`proc/cpuinfo processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd0c`,
				`proc/sys/kernel/osrelease 6.1.0-30-arm64`,
				`sys/class/dmi/id/sys_vendor QEMU`, `sys/class/dmi/id/product_name KVM Virtual Machine`,
			),
			want: Machine{
				CPU: "Arm implementer 0x41 part 0xd0c", Cores: 1, Threads: 1, NUMANodes: 1,
				Virtual: "QEMU KVM Virtual Machine", Kernel: "6.1.0-30-arm64",
			},
			text: "Arm implementer 0x41 part 0xd0c, 1 core without SMT, 1 NUMA node, 0 MiB, virtual (QEMU KVM Virtual Machine), " +
				"governor unknown, Linux 6.1.0-30-arm64, clang unknown",
		},
		{
			name: "a guest of Xen, with a Makefile that pins nothing",
			root: files(`proc/cpuinfo processor : 0\nflags : hypervisor`, `proc/sys/kernel/osrelease 6.1.0`, `sys/hypervisor/type xen`),
			tree: files(`Makefile all:`),
			want: Machine{Cores: 1, Threads: 1, NUMANodes: 1, Virtual: "xen", Kernel: "6.1.0"},
			text: "unknown CPU, 1 core without SMT, 1 NUMA node, 0 MiB, virtual (xen), governor unknown, Linux 6.1.0, clang unknown",
		},
	}
}

func TestRead(t *testing.T) {
	for _, tt := range append(ordinary(), odd()...) {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Read(tt.root, tt.tree)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("machine (-want +got):\n%s", diff)
			}
			if got.String() != tt.text {
				t.Errorf("text\nhave %s\nwant %s", got, tt.text)
			}
		})
	}
}

func TestReadLacking(t *testing.T) {
	for name, root := range map[string]fs.FS{
		"no CPU":    files(`proc/sys/kernel/osrelease 6.1.0`),
		"no kernel": files(`proc/cpuinfo processor : 0`),
	} {
		if got, err := Read(root, nil); err == nil {
			t.Errorf("%s: have %+v, want an error", name, got)
		}
	}
}

// The fixtures are only as good as their likeness to a real machine.
func TestReadHere(t *testing.T) {
	root := os.DirFS("/")
	m, err := Read(root, os.DirFS("../../.."))
	if err != nil {
		t.Fatal(err)
	}
	if m.CPU == "" || m.Cores < 1 || m.Threads < m.Cores || m.MemoryMiB < 64 || m.Clang == "" {
		t.Errorf("Read does not understand this machine: %+v", m)
	}
	load, err := ReadLoad(root)
	if err != nil {
		t.Fatal(err)
	}
	if load.Runnable < 1 || load.Times.Busy <= 0 || load.Times.Idle <= 0 {
		t.Errorf("ReadLoad does not understand this machine: %+v", load)
	}
}
