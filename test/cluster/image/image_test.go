package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/deploy/image/oci"
)

// readTar returns the entries of a tar file in order: names with what they hold, and the contents.
func readTar(t *testing.T, path string) (list []string, contents map[string]string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	contents = map[string]string{}
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		contents[header.Name] = string(content)
		text := fmt.Sprintf("%s %o", header.Name, header.Mode)
		if header.Linkname != "" {
			text += " -> " + header.Linkname
		}
		list = append(list, text)
	}
}

// makeLayer returns the file of a layer.
func makeLayer(t *testing.T, fill func(layer)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layer.tar")
	l := newLayer(path)
	fill(l)
	if _, err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMerged(t *testing.T) {
	have, contents := readTar(t, makeLayer(t, func(l layer) {
		l.symlink("bin", "usr/bin")
		l.text("bin/tool", "#!")
		l.text("usr/bin/tool", "the second of a name is left out")
		l.text("/lib64/ld.so", "loader")
		l.text("library", "not in lib")
	}))
	want := []string{"bin 777 -> usr/bin", "usr/ 755", "usr/bin/ 755", "usr/bin/tool 644", "usr/lib64/ 755", "usr/lib64/ld.so 644", "library 644"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("entries (-want +have):\n%s", diff)
	}
	if contents["usr/bin/tool"] != "#!" {
		t.Errorf("tool has %q", contents["usr/bin/tool"])
	}
}

func TestCopy(t *testing.T) {
	deb := makeLayer(t, func(layer) {})
	file, err := os.Create(deb)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(file)
	for _, h := range []tar.Header{
		{Name: "./lib/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./lib/x/lib.so", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "root"},
		{Name: "./bin/a", Typeflag: tar.TypeReg, Mode: 0o755},
		{Name: "./bin/b", Typeflag: tar.TypeLink, Linkname: "./bin/a", Mode: 0o755},
		{Name: "./usr/share/doc/a/copyright", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	path := makeLayer(t, func(l layer) {
		from, err := os.Open(deb)
		if err == nil {
			err = l.copy(tar.NewReader(from))
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	have, _ := readTar(t, path)
	want := []string{"usr/ 755", "usr/lib/ 755", "usr/lib/x/ 755", "usr/lib/x/lib.so 644", "usr/bin/ 755", "usr/bin/a 755", "usr/bin/b 755 -> usr/bin/a"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +have):\n%s", diff)
	}
}

func TestNames(t *testing.T) {
	specs := &names{all: []string{"k8s/a/b:1", "k8s/b:1", "k8s/b:2", "k8s/b-c:1", "k8s/d:1", "other/b:1"}}
	if diff := cmp.Diff([]string{"k8s/b:1", "k8s/b:2", "k8s/d:1"}, specs.of("k8s/b", "k8s/d", "k8s/none")); diff != "" || specs.err != nil {
		t.Errorf("%v, (-want +have):\n%s", specs.err, diff)
	}
	specs = &names{all: []string{"k8s/b:2.55", "k8s/b:2.63.0", "k8s/c:1.2"}}
	if oldest := specs.oldest("k8s/b"); oldest != 55 || specs.err != nil {
		t.Errorf("the oldest is %d (%v)", oldest, specs.err)
	}
	if specs.oldest("k8s/c"); specs.err == nil {
		t.Error("1.2 was taken for 2.N")
	}
	specs = &names{}
	specs.of("k8s/c", "k8s/x")
	specs.of("k8s/y")
	if specs.err == nil || !strings.Contains(specs.err.Error(), "k8s/c or k8s/x") {
		t.Errorf("images that no spec runs: %v", specs.err)
	}
}

func TestControlPlane(t *testing.T) {
	dir := t.TempDir()
	program, archive := filepath.Join(dir, "kube-apiserver-v1.36.3-0123"), filepath.Join(dir, "images.tar")
	if err := os.WriteFile(program, []byte("serves"), 0o755); err != nil {
		t.Fatal(err)
	}
	const name = "registry.example:5000/kube-apiserver:v1.36.3"
	if err := BuildControlPlane(archive, map[string]string{name: program}); err != nil {
		t.Fatal(err)
	}
	image, err := oci.Identify(archive)
	if err != nil || image.Name != name {
		t.Errorf("the image is %+v, %v", image, err)
	}
	_, blobs := readTar(t, archive)
	var layers int
	for _, blob := range blobs {
		if !strings.Contains(blob, "usr/local/bin/kube-apiserver\x00") {
			continue
		}
		layer := filepath.Join(dir, "layer.tar")
		if err := os.WriteFile(layer, []byte(blob), 0o644); err != nil {
			t.Fatal(err)
		}
		layers++
		if _, contents := readTar(t, layer); contents["usr/local/bin/kube-apiserver"] != "serves" {
			t.Errorf("the layer has %q", contents)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".layers-*")); layers != 1 || len(left) != 0 || err != nil {
		t.Errorf("%d layers, and %q is left (%v)", layers, left, err)
	}
}

// Debian's iperf of any release is understood, whatever is no row stays, and the rows are as the specs want them.
func TestIperf(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	write("usr/bin/iperf", "#!/bin/sh\n"+`[ "$*" = -s ] && exec echo serves
cat <<EOF
time,srcaddress
20261123035025.030,10.201.3.54,41902,10.202.154.4,6789,1,0.0-1.0,12058684,96469472
+0000:20240908113035.128,fd00::3,58256,fd00::4,5001,1,0.0-10.0,5220466748,41763733984,-1,-1,-1,-1,0,0
+0000:20250605191028.955,10.244.2.64,43380,10.96.223.154,6789,1,0.0,1.0,7817396288,62539170304,-1,-1,4294967295,-1,4294967295,0,0
connect failed: x,y
EOF
exit 3
`)
	run := func(args ...string) (string, int) {
		cmd := exec.Command(filepath.Join(dir, "usr/local/bin/iperf"), args...)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	const title = "time,srcaddress,srcport,dstaddr,dstport,transferid,istart,iend,bytes,speed,writecnt,writeerr,tcpretry,tcpcwnd,tcppcwnd,tcprtt,tcprttvar\n"
	for release, want := range map[string]struct{ title, between, behind string }{
		"47": {"", "-", ""},
		"53": {"", "-", ",0,0,0,0,0,0"},
		"55": {title, ",", ",0,0,0,0,0,0,0"},
		"63": {title, ",", ",0,0,0,0,0,0,0"},
	} {
		write("usr/local/bin/iperf", strings.Replace(iperf, "RELEASE", release, 1))
		text := want.title + strings.NewReplacer("..", want.between, "!", want.behind).Replace(
			`20261123035025.030,10.201.3.54,41902,10.202.154.4,6789,1,0.0..1.0,12058684,96469472!
+0000:20240908113035.128,fd00::3,58256,fd00::4,5001,1,0.0..10.0,5220466748,41763733984!
+0000:20250605191028.955,10.244.2.64,43380,10.96.223.154,6789,1,0.0..1.0,7817396288,62539170304!
connect failed: x,y
`)
		if have, code := run("-e", "--reportstyle", "C", "-c", "x"); have != text || code != 3 {
			t.Errorf("%s: it ended with %d, want 3, and (-want +have):\n%s", release, code, cmp.Diff(text, have))
		}
		if have, code := run("-s"); have != "serves\n" || code != 0 {
			t.Errorf("%s: a server ended with %d and %q", release, code, have)
		}
	}
}
