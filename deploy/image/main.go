// Command image builds the container image of fairlead without a registry or a container engine:
// for each architecture, one layer with the agent and the plugin and nothing else. The same commit
// gives the same image, to the last byte. It also writes the chart that installs this image.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"fairlead.io/fairlead/deploy/image/chart"
	"fairlead.io/fairlead/deploy/image/oci"
)

const (
	repository = "fairlead.io/fairlead"
	// limit is the most bytes that the image may take on a node's disk.
	limit = 60_000_000
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "image: %v\n", err)
		}
		os.Exit(1)
	}
}

// options are the command's options.
type options struct {
	output string // output directory
	arches []string
	name   string // of the image; empty to derive it from the version
	root   string // directory of the tree
	chart  string // the chart's directory
	// built is a directory with the programs in a subdirectory for each architecture; empty to
	// build them.
	built   string
	release bool
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&o.output, "output", "", "directory for fairlead.tar, an OCI image layout, its bills of materials in SPDX, and fairlead-chart.tgz, the chart that installs it (default _output/image, or _output/release with -release)")
	flags.StringVar(&o.name, "name", "", "name of the image with its tag (default "+repository+":VERSION)")
	flags.BoolVar(&o.release, "release", false, "make a release of the commit's tag: also the programs, the manifest, the notes of docs/changelog.md, and SHA256SUMS, in a directory that does not exist yet")
	arches := flags.String("arch", "amd64,arm64", "architectures, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no option: the options are -output, -name, -arch and -release", flags.Arg(0))
	}
	o.arches, o.root, o.chart = strings.Split(*arches, ","), ".", "charts/fairlead"
	if o.output == "" {
		o.output = map[bool]string{false: "_output/image", true: "_output/release"}[o.release]
	}
	if o.name != "" {
		if _, _, err := chart.Split(o.name); err != nil {
			return err
		}
	}
	built, err := os.MkdirTemp("", "fairlead-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(built)
	for _, arch := range o.arches {
		if err := build(ctx, filepath.Join(built, arch), arch); err != nil {
			return err
		}
	}
	o.built = built
	if o.release {
		return release(o)
	}
	made, err := write(o)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n%s\n%s\n%s\n", made.path, made.name, made.digest, made.chart)
	for _, a := range made.arches {
		fmt.Printf("%s: %.1f MiB unpacked, %.1f MiB to carry, made of %d modules\n", a.arch, mib(a.unpacked), mib(a.carried), a.modules)
	}
	return nil
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// made describes what was written.
type made struct {
	path, name, digest string
	chart              string
	version            string
	arches             []madeFor
}

type madeFor struct {
	arch              string
	unpacked, carried int64
	modules           int
}

// write writes the image of built programs.
func write(o options) (m made, err error) {
	m.path, m.name, m.chart = filepath.Join(o.output, "fairlead.tar"), o.name, filepath.Join(o.output, "fairlead-chart.tgz")
	if err := os.MkdirAll(o.output, 0o755); err != nil {
		return m, err
	}
	temp, err := os.MkdirTemp(o.output, ".layers-")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	var image chart.Image
	var images []oci.Image
	var labels map[string]string
	for _, arch := range o.arches {
		programs, err := inspectAll(filepath.Join(o.built, arch), arch)
		if err != nil {
			return m, err
		}
		m.version = programs[0].version()
		if m.name == "" {
			m.name = repository + ":" + tag(m.version)
		}
		labels, image = labelsOf(programs[0]), chart.Image{Name: m.name, Version: m.version, Time: programs[0].time()}
		layer, unpacked, err := layerOf(filepath.Join(temp, arch), programs)
		if err != nil {
			return m, err
		}
		if unpacked > limit {
			return m, fmt.Errorf("the image for %s has %d bytes, and may have %d at most", arch, unpacked, limit)
		}
		bill := billOf(programs)
		if err := bill.write(filepath.Join(o.output, "fairlead-"+arch+".spdx.json")); err != nil {
			return m, err
		}
		images = append(images, oci.Image{
			Arch: arch, Layers: []*oci.Layer{layer}, Entrypoint: []string{"/fairlead"}, Created: programs[0].time(), Labels: labels,
			Statement: &oci.Statement{PredicateType: spdxType, Predicate: bill},
		})
		m.arches = append(m.arches, madeFor{arch, unpacked, layer.Size(), len(bill.Packages)})
	}
	if m.digest, err = oci.WriteIndex(m.path, []string{m.name}, labels, images); err != nil {
		return m, err
	}
	packed, err := chart.Package(os.DirFS(o.chart), image)
	if err != nil {
		return m, err
	}
	return m, os.WriteFile(m.chart, packed, 0o644)
}

func layerOf(path string, programs []*program) (layer *oci.Layer, unpacked int64, err error) {
	files := oci.NewCompressedLayer(path)
	for _, p := range programs {
		files.Program(p.name, p.path)
		unpacked += p.size
	}
	layer, err = files.Close()
	return layer, unpacked, err
}

// labelsOf returns the labels of the image.
func labelsOf(p *program) map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       "fairlead",
		"org.opencontainers.image.description": "Kubernetes datapath: Services and the pod network by BPF, without kube-proxy",
		"org.opencontainers.image.licenses":    "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
		"org.opencontainers.image.version":     p.version(),
		"org.opencontainers.image.base.name":   "scratch",
	}
	if revision := p.setting("vcs.revision"); revision != "" {
		labels["org.opencontainers.image.revision"] = revision
		labels["org.opencontainers.image.created"] = p.setting("vcs.time")
	}
	return labels
}

var notInTags = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// tag returns a version as a tag, which must not contain +.
func tag(version string) string { return notInTags.ReplaceAllString(version, "-") }
