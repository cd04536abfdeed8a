package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFollow(t *testing.T) {
	jobs := []Job{{Name: "a", Limit: time.Hour}, {Name: "b", Limit: time.Hour}}
	for _, test := range []struct {
		name, text string
		want       string // expected in the error
		codes      []int
		done       bool
		log        string // of job a
	}{
		{"whole", "\nM begin a\n1\n M end a 0\nM\n\nM end a 3\n\nM begin b\n\nM end b 0\n\nM done\n", "", []int{3, 0}, true,
			"1\n M end a 0\nM\n\n"},
		{"cut off in a job", "\nM begin a\nhalf a li", "", nil, false, "half a li"},
		{"nothing", "", "", nil, false, ""},
		{"another order", "M begin b\n", `unexpected ["begin" "b"]`, nil, false, ""},
		{"ends before it begins", "M end a 0\n", "unexpected", nil, false, ""},
		{"two at once", "M begin a\nM begin b\n", "unexpected", nil, false, ""},
		{"one too many", "M begin a\nM end a 0\nM begin b\nM end b 0\nM begin a\n", "unexpected", []int{0, 0}, false, ""},
		{"done too early", "M begin a\nM end a 0\nM done\n", "unexpected", []int{0}, false, ""},
		{"no code", "M begin a\nM end a x\n", "exit code", nil, false, ""},
		{"no verb", "M \n", "empty line", nil, false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newReport(t.TempDir(), "M", jobs)
			err := r.follow(strings.NewReader(test.text), time.Hour, func(err error) { t.Errorf("canceled: %v", err) })
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			var codes []int
			for _, result := range r.results {
				codes = append(codes, result.Code)
			}
			if diff := cmp.Diff(test.codes, codes); diff != "" || r.done != test.done {
				t.Errorf("done %t; exit codes (-want +got):\n%s", r.done, diff)
			}
			log, _ := os.ReadFile(filepath.Join(r.dir, "a.log"))
			if diff := cmp.Diff(test.log, string(log)); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	}
}

// Each phase has its own limit: until the first job begins, until a job ends, and until the machine
// is off.
func TestFollowLimits(t *testing.T) {
	for _, test := range []struct {
		name, text string
		boot, job  time.Duration
		want       string
	}{
		{"boot", "hello\n", 0, time.Hour, "not ready after 0s"},
		{"job", "M begin a\n", time.Hour, 0, "time-out after 0s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			if _, err := write.WriteString(test.text); err != nil {
				t.Fatal(err)
			}
			causes := make(chan error, 1)
			cancel := func(err error) {
				causes <- err
				write.Close() // as qemu does when it ends
			}
			if err := newReport(t.TempDir(), "M", []Job{{Name: "a", Limit: test.job}}).follow(read, test.boot, cancel); err != nil {
				t.Fatal(err)
			}
			if err := <-causes; err.Error() != test.want {
				t.Errorf("cause %v, want %s", err, test.want)
			}
		})
	}
}
