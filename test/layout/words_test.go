package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// bannedWord is a word that names had here once, and that must not come back: it made readers look things up.
type bannedWord struct {
	in   string // the languages: C, Go, or both
	word string // one component of an identifier, or several in a row: "link_addrs"
	why  string // what to say instead, and why
}

// bannedWords is the list. To ban a word, add a line once nothing has it any more. An identifier consists of components:
// routeEpoch, route_epoch and ROUTE_EPOCH of "route" and "epoch". A component that is the word's plural counts too. In Go
// only what a file declares counts, in C every identifier.
var bannedWords = []bannedWord{
	// Fixtures of tests.
	{"C Go", "kingdom", "name a fixture by its topology: nodesOnLAN"},
	{"C Go", "nation", "name a fixture by its topology: nodesAndHosts"},
	{"C Go", "land", "name a fixture by its topology: lanForm"},
	{"C Go", "town", "name a fixture by its topology: oneNode"},
	{"C Go", "harbour", "name a fixture by its topology: oneNodeWithAgent"},
	{"C Go", "dockyard", "name a fixture by its topology: oneNodeWithProxies"},
	{"C Go", "mole", "name a fixture by its topology: oneNodeThreePods"},
	{"C Go", "world", "name a fixture by its topology: bareNode, nodesBehindRouter"},
	{"C Go", "house", "name a fixture by its topology: routerTwoPods"},
	{"C Go", "ground", "say what it is: loadedSet"},
	{"C Go", "tended", "say what tends it: nodeWithSweeper"},

	// Packet programs.
	{"C Go", "tc_go", "slowpath: that is what it is"},
	{"C Go", "xdp_go", "slowpath: that is what it is"},
	{"C Go", "ct_half", "ct_pending: half is half an end of a connection in socket acceleration"},
	{"C", "plain", "fastpath: the way that most packets take; offsets: where struct fastpath says that headers are"},
	{"C Go", "late_frame", "early_frame: fragments that come before the first of their datagram are early"},
	{"C", "unmark", "dsr_option_remove: a mark is skb->mark"},
	{"C", "unwrap", "decap: the field's word"},
	{"C", "tc_way", "tc_output: how a packet leaves the program at tc"},
	{"C Go", "undirect", "remove_option: direct server return is dsr"},
	{"C Go", "link_addr", "device_mac: it is the MAC address of a device"},
	{"C Go", "pods_dial", "packet_clients: whom the packet programs translate"},
	{"C Go", "pod_window", "receive_window: TCP's word"},
	{"C Go", "sock_peer", "sock_origin: what a connected socket dialed is not its peer"},
	{"C Go", "conn_peer", "conn_origin: what a connected socket dialed is not its peer"},
	{"C Go", "sock_flow", "sock_backend: it is the backend of an unconnected socket"},
	{"C Go", "asked_way", "fib_cache_row: it is what was found in the FIB"},
	{"C Go", "ways_told", "route_epoch_valid: the word that changes with the routes is an epoch"},
	{"C Go", "seal", "checksum: of a row"},
	{"C Go", "turnover", "lru_stats: statistics of LRU maps"},
	{"C Go", "census", "lru_stats: statistics of LRU maps"},
	{"C", "former", "conntrack_import: from netfilter's connection tracking"},
	{"C", "handover", "conntrack_export: to netfilter's connection tracking"},
	{"C", "guard", "range_epoch: of the ranges that may reach a Service"},
	{"C Go", "given_back", "dsr_returned: to the node that forwarded the packet"},
	{"C Go", "pair_short", "pair_accelerated: acceleration has one name"},

	// The agent.
	{"C Go", "keeper", "say what it does: controller, sweep, notifier"},
	{"C Go", "herald", "notifier, announcer: say what it does"},
	{"C Go", "farewell", "say what it does"},
	{"C Go", "way_status", "RouteStatus: ways had seven names"},

	{"C Go", "vouch", "renew: what an agent does with a lease"},
	{"C Go", "revoke", "end: a lease ends"},
	{"Go", "former", "older, imported, previous: say of what"},
	{"Go", "told", "say what was done: reported, logged, received"},
	{"Go", "untold", "say what is unknown"},
	{"Go", "limbo", "freed: an index that is not in use any more, but may be read"},
	{"Go", "owed", "deferred: what is freed once no program reads it"},
	{"Go", "parse_reach", "node_port_addrs: the addresses at which NodePorts are open"},
	{"Go", "served_change", "natDeviceChange: the devices at which answers are translated"},

	// British spelling.
	{"C Go", "dialled", "dialed: American spelling"},
	{"C Go", "neighbour", "neighbor: American spelling"},
	{"C Go", "labelled", "labeled: American spelling"},
	{"C Go", "unlabelled", "unlabeled: American spelling"},
	{"C Go", "signalled", "signaled: American spelling"},
	{"C Go", "tunnelled", "tunneled: American spelling"},
	{"C Go", "cancelled", "canceled: American spelling"},
	{"C Go", "colour", "color: American spelling"},
	{"C Go", "behaviour", "behavior: American spelling"},
	{"C Go", "favour", "favor: American spelling"},
	{"C Go", "centre", "center: American spelling"},
	{"C Go", "spoilt", "spoiled: American spelling"},
}

// exempt are identifiers that have a former word in another sense, which is given.
var exempt = map[string]string{}

// components returns the parts of an identifier, in lower case.
func components(identifier string) []string {
	var parts []string
	letters := []rune(identifier)
	begin := 0
	for i, r := range letters {
		end := i + 1
		switch next := append(letters, '_', '_')[end : end+2]; {
		case r == '_':
			begin = end
			continue
		case next[0] == '_', unicode.IsDigit(r) != unicode.IsDigit(next[0]), unicode.IsLower(r) && unicode.IsUpper(next[0]):
		case unicode.IsUpper(r) && unicode.IsUpper(next[0]) && unicode.IsLower(next[1]): // the S of HTTPServer begins a part
		default:
			continue
		}
		parts = append(parts, strings.ToLower(string(letters[begin:end])))
		begin = end
	}
	return parts
}

// hasWord reports whether components have those of a word in a row.
func hasWord(parts []string, word string) bool {
	wanted := strings.Split(word, "_")
	for i := range len(parts) - len(wanted) + 1 {
		if slices.EqualFunc(parts[i:i+len(wanted)], wanted, func(part, want string) bool { return part == want || part == want+"s" }) {
			return true
		}
	}
	return false
}

// identifiers returns the identifiers of a C file, or those that a Go file declares, and the language. What is generated
// has its names from elsewhere.
func identifiers(name string, content []byte) (list []string, language string) {
	if !strings.HasSuffix(name, ".go") {
		code := regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"`).ReplaceAll(content, []byte(" "))
		for _, found := range regexp.MustCompile(`[A-Za-z_]\w*`).FindAll(code, -1) {
			list = append(list, string(found))
		}
		return list, "C"
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) { // TestFiles reports the error
		return nil, "Go"
	}
	add := func(names ...*ast.Ident) {
		for _, name := range names {
			if name != nil {
				list = append(list, name.Name)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.Field:
			add(n.Names...)
		case *ast.ImportSpec:
			add(n.Name)
		case *ast.LabeledStmt:
			add(n.Label)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, left := range n.Lhs {
					name, _ := left.(*ast.Ident)
					add(name)
				}
			}
		case *ast.RangeStmt:
			for _, left := range []ast.Expr{n.Key, n.Value} {
				if name, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
					add(name)
				}
			}
		}
		return true
	})
	return list, "Go"
}

// wordProblems returns which identifiers of a file have former words, each once.
func wordProblems(name string, content []byte) (found []string) {
	list, language := identifiers(name, content)
	slices.Sort(list)
	for _, identifier := range slices.Compact(list) {
		parts := components(identifier)
		for _, w := range bannedWords {
			if strings.Contains(w.in, language) && hasWord(parts, w.word) && exempt[identifier] == "" {
				found = append(found, fmt.Sprintf("%s: %s has the word %s: %s", name, identifier, w.word, w.why))
			}
		}
	}
	return found
}

func TestWords(t *testing.T) {
	tree := os.DirFS("../..")
	seen := 0
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != "." && strings.HasPrefix(entry.Name(), ".") || slices.Contains([]string{"_output", "bin", "testdata"}, entry.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".c", ".h"}, path.Ext(name)) || strings.HasPrefix(name, "bpf/include/") {
			return nil
		}
		content, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		seen++
		for _, problem := range wordProblems(name, content) {
			t.Error(problem)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 500 {
		t.Errorf("only %d files were read", seen)
	}
}

func TestPlantedWords(t *testing.T) {
	for _, tt := range []struct {
		name, content string
		want          string // "" = nothing wrong
	}{
		{"pkg/a/a.go", "package a\n\ntype kingdom struct{}\n", "kingdom has the word kingdom: "},
		{"pkg/a/a_test.go", "package a\n\nfunc newKingdoms() {}\n", "newKingdoms has the word kingdom: "},
		{"pkg/a/a.go", "package a\n\nfunc f() { for theKINGDOM := range 3 {} }\n", "theKINGDOM has"},
		{"pkg/a/a.go", "package a\n\nfunc f(a int) { a, kingdom2 := 1, 2 }\n", "kingdom2 has"},
		{"pkg/a/a.go", "package a\n\ntype t struct { x, inKingdom int }\n", "inKingdom has"},
		{"pkg/a/a.go", "package a\n\nvar kingdomed, Subkingdom = other.Kingdom()\n", ""},
		{"pkg/a/a.go", "// Code generated by hand; DO NOT EDIT.\n\npackage a\n\nvar kingdom int\n", ""},
		{"bpf/lib/a.h", "static int kingdom_of(int a) { return a; } /* kingdom */ // kingdom\n", "kingdom_of has"},
		{"bpf/a.c", "#define KINGDOM_MAX 3\n", "KINGDOM_MAX has"},
		{"bpf/a.c", "int f(void) { return \"kingdom\"[0]; }\n", ""},
		{"bpf/a.h", "enum { REASON_NEIGHBOUR, REASON_NEIGHBOR };\n", "REASON_NEIGHBOUR has"},
		{"pkg/a/a.go", "package a\n\nfunc (l *lease) Vouch() {}\n", "Vouch has"},
		{"pkg/a/a.go", "package a\n\nfunc (l *lease) Revoke() {}\n", "Revoke has"},
		{"pkg/a/a.go", "package a\n\nvar sweepFormer, informer int\n", "sweepFormer has"},
		{"pkg/a/a.go", "package a\n\nfunc f() { told := 0 }\n", "told has the word told: "},
		{"pkg/a/a.go", "package a\n\nfunc f(untold error) {}\n", "untold has the word untold: "},
		{"pkg/a/a.go", "package a\n\ntype servedChange struct{}\n", "servedChange has"},
		{"pkg/a/a.go", "package a\n\nfunc TakeLimbo() {}\n", "TakeLimbo has"},
		{"pkg/a/a.go", "package a\n\nfunc ParseReach() {}\n", "ParseReach has"},
		{"pkg/a/a.go", "package a\n\ntype t struct{ owed int }\n", "owed has"},
		{"bpf/a.h", "enum { REASON_GIVEN_BACK };\n", "REASON_GIVEN_BACK has"},
		{"bpf/a.h", "enum { PAIR_SHORT, SHORT_PAIR };\n", "PAIR_SHORT has"},
	} {
		found := wordProblems(tt.name, []byte(tt.content))
		if tt.want == "" && len(found) > 0 {
			t.Errorf("%s: refused: %q", tt.content, found)
		}
		if tt.want != "" && (len(found) != 1 || !strings.Contains(found[0], tt.want)) {
			t.Errorf("%s: have %q, want one with %q", tt.content, found, tt.want)
		}
	}
	if got := components("HTTPServer_ofRow2A"); !slices.Equal(got, []string{"http", "server", "of", "row", "2", "a"}) {
		t.Errorf("components are %q", got)
	}
	if !hasWord(components("oldLinkAddrs4"), "link_addr") || hasWord(components("link_of_addr"), "link_addr") {
		t.Error("words of two components are not found as they should be")
	}
}
