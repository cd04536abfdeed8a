package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// inCode is a text between backquotes.
	inCode = regexp.MustCompile("`([^`\n]+)`")
	// ofC is a name in a program, rather than a word, a hook or the name of a file.
	ofC = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)+$`)
	// walkRow is a row of a walk: files, functions, what happens.
	walkRow = regexp.MustCompile(`^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|\n$`)
	// definition is a function with its body. The code is formatted, so its name is the first of its line
	// or follows its type, and a declaration has a semicolon.
	definition = regexp.MustCompile(`(?m)^(?:[a-z_][\w *]*[ *])?([a-z]\w*)\([^;{}]*\)\n\{`)
)

// programs are the functions that each file defines, by its path below bpf, and all words in any file.
type programs struct {
	functions map[string][]string
	words     map[string]bool
}

func (p *programs) add(file, source string) {
	p.functions[file] = nil
	for _, m := range definition.FindAllStringSubmatch(source, -1) {
		p.functions[file] = append(p.functions[file], m[1])
	}
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(source, -1) {
		p.words[word] = true
	}
}

// walkProblems returns which names of a page are wrong: in a walk of a packet, functions that none of the
// files beside them defines and files that define none of the functions beside them; anywhere, names
// that are in no program.
func (p *programs) walkProblems(page string) (found []string, rows int) {
	isWalk := false
	for line := range strings.Lines(page) {
		cells := walkRow.FindStringSubmatch(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			isWalk = false
		case cells != nil && cells[1] == "file" && cells[2] == "function":
			isWalk = true
		case cells != nil && isWalk:
			rows++
			found = append(found, p.rowProblems(namesIn(cells[1]), namesIn(cells[2]))...)
		}
		for _, name := range namesIn(line) {
			if ofC.MatchString(name) && !p.words[name] {
				found = append(found, name+" is in no program")
			}
		}
	}
	return found, rows
}

// rowProblems compares the files and the functions of a row.
func (p *programs) rowProblems(files, functions []string) (found []string) {
	var defined []string
	for _, file := range files {
		defined = append(defined, p.functions[file]...)
		if !slices.ContainsFunc(functions, func(name string) bool { return slices.Contains(p.functions[file], name) }) {
			found = append(found, fmt.Sprintf("%s defines none of %s", file, strings.Join(functions, ", ")))
		}
	}
	for _, name := range functions {
		if !slices.Contains(defined, name) {
			found = append(found, fmt.Sprintf("%s is not defined in %s", name, strings.Join(files, ", ")))
		}
	}
	return found
}

func namesIn(text string) (names []string) {
	for _, m := range inCode.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// TestWalks checks that bpf/README.md names functions that are where it says, and maps that exist.
func TestWalks(t *testing.T) {
	p := programs{map[string][]string{}, map[string]bool{}}
	for _, pattern := range []string{"*.c", "lib/*.h"} {
		paths, err := filepath.Glob(filepath.Join("../../bpf", pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			p.add(strings.TrimPrefix(filepath.ToSlash(path), "../../bpf/"), string(source))
		}
	}
	page, err := os.ReadFile("../../bpf/README.md")
	if err != nil {
		t.Fatal(err)
	}
	found, rows := p.walkProblems(string(page))
	for _, problem := range found {
		t.Errorf("bpf/README.md: %s", problem)
	}
	if rows == 0 {
		t.Error("bpf/README.md has no walk")
	}
}

func TestWalkProblems(t *testing.T) {
	p := programs{map[string][]string{}, map[string]bool{}}
	p.add("a.c", "int a_one(int x)\n{\n\treturn b_two(x);\n}\n")
	p.add("lib/b.h", "static int a_one(int x);\n\nstatic int\nb_two(int x,\n      int y)\n{\n}\n\nstruct { } rows;\n")
	const head = "| file | function | what happens |\n|---|---|---|\n"
	for _, c := range []struct {
		name, page string
		want       []string
	}{
		{"right", head + "| `a.c`, `lib/b.h` | `a_one`, `b_two` | `a_one` again |\n", nil},
		{"in another file", head + "| `a.c` | `a_one`, `b_two` | x |\n", []string{"b_two is not defined in a.c"}},
		{"declared there alone", head + "| `lib/b.h` | `b_two`, `a_one` | x |\n", []string{"a_one is not defined in lib/b.h"}},
		{"a file too many", head + "| `a.c`, `lib/b.h` | `a_one` | x |\n", []string{"lib/b.h defines none of a_one"}},
		{"no such file", head + "| `c.c`, `a.c` | `a_one` | x |\n", []string{"c.c defines none of a_one"}},
		{"no such function", head + "| `a.c` | `a_one`, `a_three` | x |\n", []string{"a_three is not defined in a.c", "a_three is in no program"}},
		{"no such map", "The map `the_rows` and `a_one`.\n", []string{"the_rows is in no program"}},
		{"another table", "| map | type | key |\n|---|---|---|\n| `b_two` | `a_one` | x |\n", nil},
	} {
		if found, _ := p.walkProblems(c.page); !slices.Equal(found, c.want) {
			t.Errorf("%s: found %q, want %q", c.name, found, c.want)
		}
	}
}
