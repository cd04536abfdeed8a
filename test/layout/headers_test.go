package layout

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// includeLevels is the longest chain of our headers that a program may include.
const includeLevels = 6

// families are headers that share the first word of their names, and so do their functions.
func families() []string { return []string{"dsr", "pod", "sock", "sockmap", "tc"} }

var (
	ourInclude = regexp.MustCompile(`(?m)^#include "(?:lib/)?(\w+\.h)"$`)
	comment    = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"`)
	program    = regexp.MustCompile(`(?m)^SEC\("[^"]+"\)\n(?:[a-z_][\w *]*[ *])?([a-z]\w*)\(`)
	isDefined  = regexp.MustCompile(`(?m)^(?:#define (\w+)|(struct|enum) (\w+)(?: \{|;))`)
	variable   = regexp.MustCompile(`(?m)^(?:\} (\w+) SEC|(?:const )?(?:volatile )?(?:struct )?\w+ (\w+)(?:\[\w*\])?(?: =|;))`)
	constants  = regexp.MustCompile(`(?ms)^enum(?: \w+)? \{(.*?)^\};`)
	constant   = regexp.MustCompile(`(?m)^\t([A-Z]\w+)(?: =|,)`)
	used       = regexp.MustCompile(`(?:[.]|->|(?:struct|enum) )?\b[A-Za-z_]\w*\b\(?`)
)

// headerProblems returns what is wrong with the C files of bpf, by their names: functions that are not
// called by the name of their file, headers that a file uses and does not include or includes without using,
// and chains of headers that are too long.
func headerProblems(files map[string]string) (found []string) {
	code, home, twice := map[string]string{}, map[string]string{}, map[string]bool{}
	includes := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, m := range ourInclude.FindAllStringSubmatch(files[name], -1) {
			includes[name] = append(includes[name], m[1])
		}
		code[name] = comment.ReplaceAllString(files[name], "")
		programs := map[string]bool{}
		for _, m := range ofProgramsIn(files[name]) {
			programs[m] = true
		}
		stem := strings.TrimSuffix(strings.TrimSuffix(name, ".c"), ".h")
		if first, _, _ := strings.Cut(stem, "_"); slices.Contains(families(), first) {
			stem = first
		}
		for _, m := range definition.FindAllStringSubmatch(files[name], -1) {
			if !programs[m[1]] && m[1] != stem && !strings.HasPrefix(m[1], stem+"_") {
				found = append(found, fmt.Sprintf("%s: %s does not begin with %s_", name, m[1], stem))
			}
		}
		for _, symbol := range symbols(code[name]) {
			twice[symbol] = home[symbol] != "" // by programs that never meet
			home[symbol] = name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		needs := map[string]string{}
		for _, symbol := range used.FindAllString(code[name], -1) {
			if home[symbol] == "" {
				symbol = strings.TrimSuffix(symbol, "(") // a macro with arguments
			}
			if header := home[symbol]; path.Ext(header) == ".h" && header != name && !twice[symbol] {
				needs[header] = symbol
			}
		}
		for _, header := range slices.Sorted(maps.Keys(needs)) {
			if !slices.Contains(includes[name], header) {
				found = append(found, fmt.Sprintf("%s uses %s and does not include %s", name, needs[header], header))
			}
		}
		for _, header := range includes[name] {
			if name == "schema.c" { // it is there for what it includes
				continue
			}
			if _, is := files[header]; is && needs[header] == "" && !usesVariable(code[name], code[header]) {
				found = append(found, fmt.Sprintf("%s includes %s and uses nothing of it", name, header))
			}
		}
		if chain := longest(name, includes, nil); path.Ext(name) == ".c" && len(chain)-1 > includeLevels {
			found = append(found, fmt.Sprintf("%d levels of headers: %s", len(chain)-1, strings.Join(chain, " > ")))
		}
	}
	return found
}

func ofProgramsIn(source string) (names []string) {
	for _, m := range program.FindAllStringSubmatch(source, -1) {
		names = append(names, m[1])
	}
	return names
}

// symbols are what a file defines, as other code refers to it: functions, macros, constants, structs.
func symbols(code string) (list []string) {
	for _, m := range definition.FindAllStringSubmatch(code, -1) {
		list = append(list, m[1]+"(")
	}
	for _, m := range isDefined.FindAllStringSubmatch(code, -1) {
		if m[1] != "" {
			list = append(list, m[1])
		} else {
			list = append(list, m[2]+" "+m[3])
		}
	}
	for _, m := range constants.FindAllStringSubmatch(code, -1) {
		for _, c := range constant.FindAllStringSubmatch(m[1], -1) {
			list = append(list, c[1])
		}
	}
	return list
}

// usesVariable reports whether code may use a map or another variable of a header. Local ones may have the same names.
func usesVariable(code, header string) bool {
	names := used.FindAllString(code, -1)
	return slices.ContainsFunc(variable.FindAllStringSubmatch(header, -1), func(m []string) bool {
		return slices.Contains(names, m[1]+m[2])
	})
}

// longest returns the longest chain of headers from a file on. A circle ends where it closes.
func longest(name string, includes map[string][]string, above []string) []string {
	best := []string{name}
	if slices.Contains(above, name) {
		return best
	}
	for _, header := range includes[name] {
		if chain := longest(header, includes, append(above, name)); len(chain)+1 > len(best) {
			best = append([]string{name}, chain...)
		}
	}
	return best
}

// TestHeaders reads bpf and bpf/lib.
func TestHeaders(t *testing.T) {
	files := map[string]string{}
	for _, dir := range []string{"bpf", "bpf/lib"} {
		entries, err := fs.ReadDir(os.DirFS("../.."), dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if ext := path.Ext(entry.Name()); ext != ".c" && ext != ".h" {
				continue
			}
			source, err := os.ReadFile(path.Join("../..", dir, entry.Name()))
			if err != nil {
				t.Fatal(err)
			}
			files[entry.Name()] = string(source)
		}
	}
	for _, problem := range headerProblems(files) {
		t.Error(problem)
	}
}

func TestPlantedHeaders(t *testing.T) {
	right := map[string]string{
		"a.h":      "#define A_MOST 3\n\nstatic int a_one(int x)\n{\n\treturn x;\n}\n",
		"dsr_to.h": "#include \"a.h\"\n\nstatic int dsr_two(int x)\n{\n\treturn a_one(x); /* not c_three */\n}\n",
		"c.c":      "#include \"lib/dsr_to.h\"\n\nSEC(\"tc\")\nint from_netdev(struct __sk_buff *skb)\n{\n\treturn dsr_two(skb->A_MOST);\n}\n",
	}
	if found := headerProblems(right); len(found) != 0 {
		t.Fatalf("found %q", found)
	}
	for _, c := range []struct{ name, file, source, want string }{
		{"another name", "a.h", "static int one(int x)\n{\n\treturn x;\n}\n", "a.h: one does not begin with a_"},
		{"by way of another", "c.c", "#include \"lib/dsr_to.h\"\n\nSEC(\"tc\")\nint from_netdev(void)\n{\n\treturn A_MOST;\n}\n", "c.c uses A_MOST and does not include a.h"},
		{"for nothing", "a.h", "#include \"dsr_to.h\"\n", "a.h includes dsr_to.h and uses nothing of it"},
		{"no program", "c.c", "int from_netdev(void)\n{\n\treturn 0;\n}\n", "c.c: from_netdev does not begin with c_"},
	} {
		files := maps.Clone(right)
		files[c.file] = c.source
		if found := headerProblems(files); !slices.Contains(found, c.want) {
			t.Errorf("%s: found %q, want %q", c.name, found, c.want)
		}
	}
	files := map[string]string{"z.c": "#include \"lib/h1.h\"\n"}
	for i := 1; i <= includeLevels+1; i++ {
		files[fmt.Sprintf("h%d.h", i)] = fmt.Sprintf("#include \"h%d.h\"\n", i+1)
	}
	found := headerProblems(files)
	if !slices.ContainsFunc(found, func(problem string) bool { return strings.HasPrefix(problem, "8 levels") }) {
		t.Errorf("a long chain: found %q", found)
	}
}
