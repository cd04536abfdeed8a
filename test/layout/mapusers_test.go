package layout

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
)

// hookNames are the users of maps that are programs; TestHooksOfMaps of pkg/maps holds the list to them.
func hookNames() []string { return []string{"sock", "tc", "xdp", "pod"} }

// aside is what a list of users says about one of them.
var aside = regexp.MustCompile(` \([a-z ]+\)`)

// usersOf returns the names in a list of who writes or reads a map.
func usersOf(list string) []string {
	return strings.Split(aside.ReplaceAllString(list, ""), ", ")
}

// packageOf returns the package of ours that a list of users names.
func packageOf(user string, graph []node) (node, bool) {
	for _, dir := range []string{"pkg/", "pkg/agent/"} {
		if at := slices.IndexFunc(graph, func(n node) bool { return ours(n.ImportPath) == dir+user }); at >= 0 {
			return graph[at], true
		}
	}
	return node{}, false
}

// userProblems returns which users of a map are neither programs nor packages that know the maps.
func userProblems(info *maps.Info, graph []node) (found []string) {
	for _, user := range slices.Concat(usersOf(info.WrittenBy), usersOf(info.ReadBy)) {
		if slices.Contains(hookNames(), user) {
			continue
		}
		switch n, ok := packageOf(user, graph); {
		case !ok:
			found = append(found, fmt.Sprintf("%s: there is no package %s", info.Name, user))
		case !slices.Contains(n.Imports, module+"/pkg/maps"):
			found = append(found, fmt.Sprintf("%s: package %s does not know the maps", info.Name, user))
		}
	}
	return found
}

// TestMapUsers checks that who writes and reads a map, as "fairlead map list" says it, are programs or packages that
// can, and that bpf/README.md says the same.
func TestMapUsers(t *testing.T) {
	graph := listPackages(t)
	page, err := os.ReadFile("../../bpf/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range (&maps.Maps{}).All() {
		for _, problem := range userProblems(&info, graph) {
			t.Error(problem)
		}
		row := regexp.MustCompile("(?m)^\\| `" + info.Name + "` \\|.*$").FindString(string(page))
		if want := fmt.Sprintf(" | %s | %s |", info.WrittenBy, info.ReadBy); !strings.HasSuffix(row, want) {
			t.Errorf("bpf/README.md, map %s: want a row that ends in %q, have %q", info.Name, want, row)
		}
	}
}

func TestUserProblems(t *testing.T) {
	graph := []node{
		{ImportPath: module + "/pkg/reconcile", Imports: []string{module + "/pkg/maps"}},
		{ImportPath: module + "/pkg/agent/podnetwork", Imports: []string{module + "/pkg/maps"}},
		{ImportPath: module + "/pkg/observe", Imports: []string{module + "/pkg/snapshot"}},
	}
	for _, tt := range []struct{ writes, reads, want string }{
		{"reconcile, tc (turn)", "sock, pod, podnetwork", ""},
		{"reconciler", "sock", "m: there is no package reconciler"},
		{"tc", "tc, observe", "m: package observe does not know the maps"},
	} {
		info := maps.Info{Name: "m", WrittenBy: tt.writes, ReadBy: tt.reads}
		if have := strings.Join(userProblems(&info, graph), "; "); have != tt.want {
			t.Errorf("written by %s, read by %s: %q, want %q", tt.writes, tt.reads, have, tt.want)
		}
	}
}
