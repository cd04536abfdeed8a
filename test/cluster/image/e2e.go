// Package image builds the images for the cluster and its specs from Debian packages and Go
// programs.
package image

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fairlead.io/fairlead/deploy/image/oci"
	"fairlead.io/fairlead/test/cluster/pki"
)

//go:embed iperf.sh
var iperf string

// Pause is the name of the image of the container that holds a pod's namespaces.
const Pause = "registry.k8s.io/pause:3.10.2"

// Programs are the programs that go into the images, by path.
type Programs struct {
	Agnhost, CoreDNS, Regression string
	Front                        string   // stands before agnhost
	CoreDNSImage                 string   // name of the image
	Specs                        []string // names of all images that specs run, including those not built here
}

// packages returns what agnhost's image and similar ones contain beside agnhost: the clients that
// specs call by name, and what runs other commands. Busybox prefers its own applets to commands in
// PATH, so it must not be the shell that runs a client; nor does its wget work with a C library of
// a different build than its own.
func packages() []string {
	return []string{
		"bash", "bind9-dnsutils", "busybox-static", "catatonit", "conntrack", "coreutils", "curl", "findutils", "grep",
		"hostname", "iperf", "iproute2", "iptables", "libc-bin", "netbase", "netcat-openbsd", "procps", "sed", "wget",
	}
}

// BuildAll writes an archive of every image that the cluster and the network specs use. Where
// upstream's images are based on Alpine, these use Debian's busybox as shell and tools, and
// Debian's packages for the network tools.
func BuildAll(path string, p Programs) (err error) {
	work, err := os.MkdirTemp(filepath.Dir(path), ".layers-*")
	if err != nil {
		return fmt.Errorf("build images: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	debs, err := Fetch(filepath.Join(work, "debs"), packages())
	if err != nil {
		return err
	}
	if err := makeCertificate(work); err != nil {
		return err
	}
	const e2e = "registry.k8s.io/e2e-test-images/"
	specs := &names{all: p.Specs}
	release := specs.oldest(e2e + "agnhost")
	layers := &layers{work: work}
	applets, err := applets(find(debs, "busybox-static"), filepath.Join(work, "busybox"))
	if err != nil {
		return err
	}
	box := layers.make("box", func(l layer) { busybox(l, debs, applets) })
	clients := layers.make("clients", func(l layer) { userland(l, debs, applets, release) })
	pause := layers.make("pause", func(l layer) { l.deb(find(debs, "catatonit")) })
	dns := layers.make("dns", func(l layer) { l.Program("coredns", p.CoreDNS) })
	agnhost := layers.make("agnhost", func(l layer) {
		l.Program("agnhost", p.Front)
		l.Program("agnhost-upstream", p.Agnhost)
		l.symlink("agnhost-2", "agnhost")
		l.Dir("uploads", 0o755)
		for _, name := range []string{"localhost.crt", "localhost.key"} {
			l.Program(name, filepath.Join(work, name))
		}
	})
	regression := layers.make("regression", func(l layer) { l.Program("regression-issue-74839", p.Regression) })
	if layers.err != nil {
		return fmt.Errorf("build images: %w", layers.err)
	}
	images := []oci.Image{
		{Names: slices.Compact(append(specs.of("registry.k8s.io/pause"), Pause)), Layers: []*oci.Layer{pause}, Entrypoint: []string{"/usr/bin/catatonit", "-P"}, User: "65535:65535"},
		{Names: []string{p.CoreDNSImage}, Layers: []*oci.Layer{dns}, Entrypoint: []string{"/coredns"}},
		{Names: specs.of(e2e + "busybox"), Layers: []*oci.Layer{box}, Cmd: []string{"sh"}},
		{
			Names: slices.Compact(append(specs.of(e2e+"agnhost"), ofPolicies(e2e)...)), Layers: []*oci.Layer{clients, dns, agnhost},
			Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
		},
		// Older specs call this image jessie-dnsutils.
		{Names: specs.of(e2e+"glibc-dns-testing", e2e+"jessie-dnsutils"), Layers: []*oci.Layer{clients, dns}, Cmd: []string{"/bin/bash"}},
		{Names: specs.of("registry.k8s.io/build-image/distroless-iptables"), Layers: []*oci.Layer{clients}, Cmd: []string{"/bin/bash"}},
		// The network specs only need a web server from this image.
		{Names: specs.of(e2e + "nginx"), Layers: []*oci.Layer{box}, Cmd: []string{"httpd", "-f", "-p", "80", "-h", "/www"}},
		{Names: specs.of(e2e + "regression-issue-74839"), Layers: []*oci.Layer{regression}, Entrypoint: []string{"/regression-issue-74839"}},
	}
	if specs.err != nil {
		return fmt.Errorf("build images: %w", specs.err)
	}
	return oci.Write(path, images)
}

// ofPolicies returns the names under which the suites of ../policy ask for agnhost: ClusterNetworkPolicy's and cyclonus'.
func ofPolicies(repository string) []string {
	return []string{repository + "agnhost:2.45", repository + "agnhost:2.43"}
}

// names selects image names; it keeps the first error.
type names struct {
	all []string
	err error
}

// of returns the names in the given repositories. It is an error if there are none.
func (n *names) of(repositories ...string) (found []string) {
	for _, name := range n.all {
		if repository, _, _ := strings.Cut(name, ":"); slices.Contains(repositories, repository) {
			found = append(found, name)
		}
	}
	if len(found) == 0 && n.err == nil {
		n.err = fmt.Errorf("no spec runs an image %s any more", strings.Join(repositories, " or "))
	}
	return found
}

// oldest returns the lowest N among the names repository:2.N.
func (n *names) oldest(repository string) int {
	oldest := math.MaxInt
	for _, name := range n.of(repository) {
		var minor int
		if _, err := fmt.Sscanf(name, repository+":2.%d", &minor); err != nil && n.err == nil {
			n.err = fmt.Errorf("find the release of %s: %w", name, err)
		}
		oldest = min(oldest, minor)
	}
	return oldest
}

// makeCertificate makes localhost.crt and localhost.key, with which agnhost serves TLS to clients
// that do not verify it.
func makeCertificate(dir string) error {
	authority, err := pki.NewAuthority(dir, "authority")
	if err != nil {
		return err
	}
	return authority.Issue("localhost", pki.Subject{
		Name: "localhost", DNS: []string{"localhost"},
		Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()},
	})
}

// layers makes layers; it keeps the first error.
type layers struct {
	work string
	err  error
}

func (ls *layers) make(name string, fill func(layer)) *oci.Layer {
	if ls.err != nil {
		return nil
	}
	l := newLayer(filepath.Join(ls.work, name+".tar"))
	fill(l)
	done, err := l.Close()
	if err != nil {
		ls.err = fmt.Errorf("%s: %w", name, err)
	}
	return done
}

// skeleton adds what every image with a shell needs.
func skeleton(l layer) {
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "root", "var", "proc", "sys", "dev"} {
		l.Dir(dir, 0o755)
	}
	l.Dir("tmp", 0o1777)
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		l.symlink(dir, "usr/"+dir)
	}
	l.symlink("var/run", "/run")
	l.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
	l.text("etc/group", "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\nnogroup:x:65534:\n")
	l.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
}

// busybox adds a shell and tools as one static program.
func busybox(l layer, debs, applets []string) {
	skeleton(l)
	l.Dir("www", 0o755)
	l.text("www/index.html", "a web server\n")
	l.deb(find(debs, "busybox-static"))
	l.applets(applets)
}

// userland adds Debian's packages, and busybox for all commands that they lack. The output that
// specs parse is that of their agnhost's release.
func userland(l layer, debs, applets []string, agnhost int) {
	skeleton(l)
	for _, link := range [][2]string{ // normally made by the packages' scripts
		{"usr/bin/sh", "bash"}, {"usr/bin/nc", "nc.openbsd"}, {"usr/sbin/iptables", "xtables-nft-multi"}, {"usr/sbin/ip6tables", "xtables-nft-multi"},
		{"usr/sbin/iptables-save", "xtables-nft-multi"}, {"usr/sbin/iptables-restore", "xtables-nft-multi"},
	} {
		l.symlink(link[0], link[1])
	}
	l.script("usr/local/bin/iperf", strings.Replace(iperf, "RELEASE", strconv.Itoa(agnhost), 1))
	l.text("etc/wgetrc", "tries = 1\n") // as busybox's wget does
	for _, deb := range debs {
		// Only scripts that run when packages are installed need Perl.
		if name := filepath.Base(deb); !strings.HasPrefix(name, "perl") && !strings.HasPrefix(name, "libperl") {
			l.deb(deb)
		}
	}
	l.applets(applets)
}

// applets unpacks busybox's package into a directory and returns the names of its commands.
func applets(deb, dir string) ([]string, error) {
	if out, err := exec.Command("dpkg-deb", "--extract", deb, dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("unpack busybox: %w\n%s", err, out)
	}
	for _, bin := range []string{"usr/bin", "bin"} { // depending on the distribution's release
		program := filepath.Join(dir, bin, "busybox")
		if _, err := os.Stat(program); err != nil {
			continue
		}
		list, err := exec.Command(program, "--list").Output()
		if err != nil {
			return nil, fmt.Errorf("list the commands of busybox: %w", err)
		}
		return strings.Fields(string(list)), nil
	}
	return nil, errors.New("list the commands of busybox: no busybox in its package")
}

// applets adds a link to busybox for each command that the layer does not contain as a program.
func (l layer) applets(names []string) {
	for _, name := range names {
		if name != "busybox" && !l.Has("usr/sbin/"+name) {
			l.symlink("usr/bin/"+name, "busybox")
		}
	}
}

// find returns the file of a package among the fetched ones.
func find(debs []string, name string) string {
	for _, deb := range debs {
		if strings.HasPrefix(filepath.Base(deb), name+"_") {
			return deb
		}
	}
	return name
}
