package debian

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNewestOf(t *testing.T) {
	available := []Package{
		{"linux-image-6.1-cloud-amd64", "6.1.99-1", "meta"},
		{"linux-image-6.1.0-8-cloud-amd64", "6.1.80-1", "a"},
		{"linux-image-6.1.0-10-cloud-amd64", "6.1.100-1", "b"},
		{"linux-image-6.1.0-11-amd64", "6.1.110-1", "not for clouds"},
		{"linux-image-6.1.0-11-cloud-amd64-unsigned", "6.1.110-1", "not signed"},
		{"linux-image-6.12.3-cloud-amd64", "6.12.3-1", "another kernel"},
		{"linux-binary-7.2.9-cloud-amd64", "7.2.9-1", "c"},
		{"linux-binary-7.2.10-cloud-amd64", "7.2.10-1", "d"},
		{"linux-modules-7.2.9-cloud-amd64", "7.2.9-1", "e"},
		{"linux-modules-7.2.10-cloud-amd64", "7.2.10-1", "f"},
		{"linux-modules-7.2.11-cloud-amd64", "7.2.11-1", "without its binary"},
	}
	for _, test := range []struct {
		kernel string
		roles  []string
		want   []string // SHA-256
	}{
		{"6.1", []string{"linux-image-"}, []string{"b"}},
		{"7.2", []string{"linux-binary-", "linux-modules-"}, []string{"d", "f"}},
		{"7.3", []string{"linux-image-"}, nil},
	} {
		pin := Pin{Kernel: test.kernel}
		for _, role := range test.roles {
			pin.Packages = append(pin.Packages, Package{role + test.kernel + ".0-1-cloud-amd64", test.kernel + ".0-1", ""})
		}
		newest, err := newestOf(pin, available, dpkgLess)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range newest {
			got = append(got, p.SHA256)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.kernel, diff)
		}
	}
}

func TestGoneError(t *testing.T) {
	gone := &GoneError{Package: Package{Name: "linux-image-6.1.0-1", Version: "6.1.5-1"}, Suite: "bookworm"}
	if text := gone.Error(); !strings.Contains(text, "has no linux-image-6.1.0-1 6.1.5-1: mirrors drop old point releases") ||
		!strings.Contains(text, "pins.txt") {
		t.Error(text)
	}
	gone.Newest = []Package{{Name: "linux-image-6.1.0-2", Version: "6.1.6-1"}}
	if text := gone.Error(); !strings.HasSuffix(text, `it has linux-image-6.1.0-2 6.1.6-1 now, which "make pin-kernels" pins`) {
		t.Error(text)
	}
}

func TestMissing(t *testing.T) {
	old := Package{"linux-image-6.1.0-1-cloud-amd64", "6.1.5-1", "a"}
	now := Package{"linux-image-6.1.0-2-cloud-amd64", "6.1.6-1", "b"}
	pin := Pin{Kernel: "6.1", Suite: "s", Packages: []Package{old}}
	if err := pin.missing([]Package{now, old}); err != nil {
		t.Errorf("all packages are available: %v", err)
	}
	again := old
	again.Version = "6.1.5-2"
	for _, test := range []struct {
		available []Package
		want      []Package
	}{{[]Package{now}, []Package{now}}, {[]Package{again}, []Package{again}}, {nil, nil}} {
		var gone *GoneError
		if err := pin.missing(test.available); !errors.As(err, &gone) {
			t.Fatalf("%v: error %v", test.available, err)
		}
		if diff := cmp.Diff(&GoneError{Package: old, Suite: "s", Newest: test.want}, gone); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.available, diff)
		}
	}
}

func TestParsePackages(t *testing.T) {
	stanzas := `Package: linux-image-6.1.0-1-cloud-amd64
Version: 6.1.5-1
Description: a kernel
 SHA256: of no package
SHA256: aa

Package: bash
Version: 5
SHA256: bb

Package: linux-base-7
Version: 7
SHA256: cc
`
	want := []Package{{"linux-image-6.1.0-1-cloud-amd64", "6.1.5-1", "aa"}, {"linux-base-7", "7", "cc"}}
	got, err := parsePackages(strings.NewReader(stanzas))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
}
