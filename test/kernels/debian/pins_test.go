package debian

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The file in the tree has the format that WritePins writes, and is complete.
func TestPins(t *testing.T) {
	pins, err := Pins()
	if err != nil {
		t.Fatal(err)
	}
	var written bytes.Buffer
	if err := WritePins(&written, pins); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(pinned, written.String()); diff != "" {
		t.Errorf("pins.txt (-tree +written):\n%s", diff)
	}
	serving := 0
	for _, pin := range pins {
		for _, p := range pin.Packages {
			if len(p.SHA256) != 64 {
				t.Errorf("%s: SHA-256 is %q", p.Name, p.SHA256)
			}
			if _, err := pin.role(p); err != nil {
				t.Error(err)
			}
		}
		if pin.Serves {
			serving++
		}
	}
	if serving == 0 || serving == len(pins) {
		t.Errorf("%d of %d kernels serve, want some of either kind", serving, len(pins))
	}
}

func TestParsePins(t *testing.T) {
	const two = "7.2 serves s linux-a-7.2.1-cloud-amd64 7.2.1-1 aa\n7.2 serves s linux-b-7.2.1-cloud-amd64 7.2.1-1 bb\n"
	for _, test := range []struct {
		name, text string
		want       []Pin
		err        string
	}{
		{"none", "# nothing\n\n", nil, ""},
		{"two packages", two, []Pin{{"7.2", true, "s", []Package{
			{"linux-a-7.2.1-cloud-amd64", "7.2.1-1", "aa"}, {"linux-b-7.2.1-cloud-amd64", "7.2.1-1", "bb"},
		}}}, ""},
		{"refusing", "5.4 refuses s p v x # why\n", []Pin{{"5.4", false, "s", []Package{{"p", "v", "x"}}}}, ""},
		{"fields", "5.4 refuses s p v\n", nil, "line 1: 5 fields"},
		{"expectation", "5.4 works s p v x\n", nil, `"works" is neither`},
		{"versions", two + "7.2 serves s linux-c-7.2.2-cloud-amd64 7.2.2-1 cc\n", nil, "line 3: differs"},
		{"suites", two + "7.2 serves t linux-c-7.2.1-cloud-amd64 7.2.1-1 cc\n", nil, "line 3: differs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pins, err := parsePins(test.text)
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, pins); diff != "" {
				t.Errorf("pins (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSelect(t *testing.T) {
	pins := []Pin{{Kernel: "6.1"}, {Kernel: "7.2"}}
	if all, err := Select(pins, nil); err != nil || len(all) != 2 {
		t.Errorf("no names: %v, %v", all, err)
	}
	if some, err := Select(pins, []string{"7.2"}); err != nil || len(some) != 1 || some[0].Kernel != "7.2" {
		t.Errorf("one name: %v, %v", some, err)
	}
	if _, err := Select(pins, []string{"7"}); err == nil || !strings.Contains(err.Error(), "there are 6.1, 7.2") {
		t.Errorf("unknown name: %v", err)
	}
}
