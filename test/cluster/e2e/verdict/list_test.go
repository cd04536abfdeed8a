package verdict

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseList(t *testing.T) {
	tests := []struct{ name, row, want string }{
		{"smoke", "smoke | pass | any | a", ""},
		{"a reason for a pass", "full | pass | any | a | it is slow", ""},
		{"conditions", "full | fail | fairlead ipv6 nodes<6 | a | b", ""},
		{"no reason", "full | fail | any | a", "needs a reason"},
		{"a blank reason", "full | skip | any | a |  ", "needs a reason"},
		{"no reason to leave it out", "never | - | any | a", "needs a reason"},
		{"left out and expected", "never | fail | any | a | b", "never runs"},
		{"no expectation", "full | - | any | a | b", "pass, fail or skip"},
		{"flaky", "full | flaky | any | a | b", "pass, fail or skip"},
		{"no scope", "sometimes | pass | any | a", "smoke, full or never"},
		{"a beginning in the short run", "smoke | pass | any | a*", "single specs that pass"},
		{"a failure in the short run", "smoke | fail | any | a | b", "single specs that pass"},
		{"no spec", "full | pass | any | ", "nothing"},
		{"everything", "full | fail | any | * | b", "nothing"},
		{"blanks", "full | pass | any | a  b", "a blank too many"},
		{"an unknown condition", "full | pass | ipvs | a", "ipvs"},
		{"an odd number of nodes", "full | pass | nodes<x | a", "nodes<x"},
		{"some minors", "full | pass | kubernetes>1.30 kubernetes<1.36 | a", ""},
		{"an odd minor", "full | pass | kubernetes>1.x | a", "kubernetes>1.x"},
		{"a minor alone", "full | pass | kubernetes<36 | a", "kubernetes<36"},
		{"more than a minor", "full | pass | kubernetes<1.36.3 | a", "kubernetes<1.36.3"},
		{"too large a minor", "full | pass | kubernetes<1.99999999999999999999 | a", "out of range"},
		{"no condition", "full | pass |  | a", "it is any"},
		{"few columns", "full | pass | any", "3 columns"},
		{"many columns", "full | pass | any | a | b | c", "6 columns"},
		{"twice", "full | pass | any | a\nfull | fail | any | a | b", "line 2 too"},
		{"twice under the same conditions", "full | pass | ipv6 nodes<3 | a\nfull | fail | ipv6 nodes<3 | a | b", "line 2 too"},
		{"twice, once with a condition", "full | pass | ipv6 | a\nfull | fail | any | a | b", ""},
		{"twice under different conditions", "full | pass | ipv6 | a\nfull | fail | ipv4 | a | b", ""},
		{"a name and a beginning", "full | pass | any | a\nfull | fail | any | a* | b", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseList(strings.NewReader(header + "\n" + strings.ReplaceAll(tt.row, " | ", "\t")))
			if tt.want == "" && err != nil {
				t.Errorf("refused: %v", err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("have %v, want an error with %q", err, tt.want)
			}
		})
	}
	for _, text := range []string{"", "# nothing\n", header + "\n", "smoke\tpass\tany\ta\n"} {
		if _, err := ParseList(strings.NewReader(text)); err == nil {
			t.Errorf("ParseList accepts %q", text)
		}
	}
}

func TestFind(t *testing.T) {
	list := expected(t,
		"full | fail | any | net * | all of it",
		"full | skip | any | net udp* | part",
		"full | pass | any | net udp",
		"full | skip | fairlead | net tcp | one",
		"full | fail | fairlead ipv6 | net tcp | two",
		"never | - | kube-proxy nodes<3 | web | three",
		"full | fail | any | app | four",
		"full | skip | nodes<3 | app | five",
		"full | skip | ipv4 | app | six",
		"full | fail | kubernetes<1.36 | log | seven",
		"full | skip | kubernetes>1.36 | log | eight",
	)
	tests := []struct {
		spec    string
		cluster Cluster
		want    string // scope, expectation and reason
	}{
		{"net x", Cluster{}, "full fail all of it"},
		{"net udp", Cluster{}, "full pass "},
		{"net udp x", Cluster{}, "full skip part"},
		{"net tcp", Cluster{}, "full fail all of it"},
		{"net tcp", Cluster{Proxy: "fairlead", Family: "ipv4"}, "full skip one"},
		{"net tcp", Cluster{Proxy: "fairlead", Family: "ipv6"}, "full fail two"},
		{"netx", Cluster{}, "full pass "},
		{"app", Cluster{Nodes: 3}, "full fail four"},
		{"app", Cluster{Nodes: 2}, "full skip five"},
		{"app", Cluster{Nodes: 2, Family: "ipv4"}, "full skip five"},
		{"app", Cluster{Nodes: 3, Family: "ipv4"}, "full skip six"},
		{"log", Cluster{Minor: 35}, "full fail seven"},
		{"log", Cluster{Minor: 36}, "full pass "},
		{"log", Cluster{Minor: 37}, "full skip eight"},
		{"web", Cluster{Proxy: "nftables", Nodes: 2}, "never  three"},
		{"web", Cluster{Proxy: "nftables", Nodes: 3}, "full pass "},
		{"web", Cluster{Proxy: "fairlead", Nodes: 2}, "full pass "},
	}
	for _, tt := range tests {
		row := list.In(tt.cluster).Find(tt.spec)
		if have := string(row.Scope) + " " + string(row.Expect) + " " + row.Reason; have != tt.want {
			t.Errorf("%s in %+v: have %q, want %q", tt.spec, tt.cluster, have, tt.want)
		}
	}
}

func TestPatterns(t *testing.T) {
	list := expected(t,
		"smoke | pass | any | [net] a (b) [LinuxOnly]",
		"smoke | pass | any | [net] c",
		"full | pass | any | [net] d",
		"never | - | any | [net] p* | x",
		"never | - | any | [net] q | x",
	)
	matching := func(pattern string) (found []string) {
		for _, spec := range []string{"[net] a (b) [LinuxOnly]", "[net] c", "[net] c ", "[net] c more", "[net] d", "[net] policy", "[net] q", "[net] q2", "x [net] c"} {
			if regexp.MustCompile(pattern).MatchString("Kubernetes e2e suite " + spec) {
				found = append(found, spec)
			}
		}
		return found
	}
	if diff := cmp.Diff([]string{"[net] a (b) [LinuxOnly]", "[net] c", "[net] c "}, matching(list.Smoke())); diff != "" {
		t.Errorf("short run (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"[net] policy", "[net] q"}, matching(list.Never())); diff != "" {
		t.Errorf("left out (-want +have):\n%s", diff)
	}
	if pattern := expected(t, "full | pass | any | a").Never(); pattern != "" {
		t.Errorf("pattern %q without specs to leave out, want none", pattern)
	}
}

// The project's own list is well-formed, and its short run is not empty.
func TestOurList(t *testing.T) {
	file, err := os.Open("../expected.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	list, err := ParseList(file)
	if err != nil {
		t.Fatal(err)
	}
	if list.In(Cluster{Proxy: "fairlead", Family: "ipv4", Nodes: 3, Minor: 36}).Smoke() == "" {
		t.Error("the short run is empty")
	}
}
