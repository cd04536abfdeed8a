package layout

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/lb"
)

const contributing = ".github/CONTRIBUTING.md"

// recipe is a part of CONTRIBUTING: what must be written by hand to add something.
type recipe struct {
	most  int
	steps int
	files []string // that it names: patterns of path.Match, or folders
}

// recipesIn reads the recipes of a page: sections with a heading such as "### A new option: at most 6 files", whose numbered
// steps are a file each.
func recipesIn(page string) map[string]*recipe {
	heading := regexp.MustCompile(`^### A new (.*): at most ([0-9]+) files$`)
	step := regexp.MustCompile(`^[0-9]+\. `)
	file := regexp.MustCompile("`([^` ]+/[^` ]+)`")
	all := map[string]*recipe{}
	var now *recipe
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "#") {
			now = nil
		}
		if found := heading.FindStringSubmatch(line); found != nil {
			most, _ := strconv.Atoi(found[2])
			now = &recipe{most: most}
			all[found[1]] = now
		}
		if now == nil {
			continue
		}
		if step.MatchString(line) {
			now.steps++
		}
		for _, found := range file.FindAllStringSubmatch(line, -1) {
			now.files = append(now.files, found[1])
		}
	}
	return all
}

// has reports whether the recipe names a file.
func (r *recipe) has(file string) bool {
	return slices.ContainsFunc(r.files, func(pattern string) bool {
		fits, _ := path.Match(pattern, file)
		return fits || strings.HasPrefix(file, pattern+"/")
	})
}

// byHand returns the content of every file that is written by hand, and is neither prose nor data of a test.
func byHand(t *testing.T, tree fs.FS) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if entry.IsDir() {
			if name != "." && strings.HasPrefix(base, ".") || slices.Contains([]string{"_output", "bin", "testdata", "pkg/bpf", "deploy/kubernetes"}, name) || base == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".c", ".h", ".yaml", ".json", ".tpl", ".sh"}, path.Ext(name)) {
			return nil
		}
		content, err := fs.ReadFile(tree, name)
		if first, _, _ := strings.Cut(string(content), "\n"); err == nil && !strings.Contains(strings.ToLower(first), "generated") {
			files[name] = string(content)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// wordsOf returns the words of a text, in which - and _ are letters.
func wordsOf(text string) map[string]bool {
	all := map[string]bool{}
	for word := range strings.FieldsFuncSeq(text, func(c rune) bool { return c != '-' && c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) }) {
		all[strings.TrimLeft(word, "-")] = true
	}
	return all
}

// listsOf returns the files that name at least that share of some things, either as users do (no-backend) or as C does, with a
// prefix (REASON_NO_BACKEND). Whoever adds another has to add it there too.
func listsOf(files map[string]map[string]bool, share float64, prefix string, names []string) (lists []string) {
	for file, words := range files {
		n := 0
		for _, name := range names {
			if words[name] || words[prefix+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))] {
				n++
			}
		}
		if float64(n) >= share*float64(len(names)) {
			lists = append(lists, file)
		}
	}
	slices.Sort(lists)
	return lists
}

// TestRecipes holds CONTRIBUTING's recipes: they have no more files than they say, the files exist, and every file that lists
// what there is of such a thing is in the recipe.
func TestRecipes(t *testing.T) {
	tree := os.DirFS("../..")
	page, err := fs.ReadFile(tree, contributing)
	if err != nil {
		t.Fatal(err)
	}
	recipes, files, contents := recipesIn(string(page)), map[string]map[string]bool{}, byHand(t, tree)
	for name, content := range contents {
		files[name] = wordsOf(content)
	}
	var options []string
	for _, o := range config.Options() {
		if strings.Contains(o.Name, "-") { // others are words of prose
			options = append(options, o.Name)
		}
	}
	var reasons, annotations []string
	for _, found := range regexp.MustCompile(`(?m)^\tREASON_(\w+),`).FindAllStringSubmatch(contents["bpf/lib/reason.h"], -1) {
		if name := strings.ReplaceAll(strings.ToLower(found[1]), "_", "-"); strings.Contains(name, "-") {
			reasons = append(reasons, name)
		}
	}
	for _, found := range regexp.MustCompile(`(?m)^\t(annotation\w+) += annotationPrefix`).FindAllStringSubmatch(contents["pkg/source/annotations.go"], -1) {
		annotations = append(annotations, found[1])
	}
	algorithms := slices.DeleteFunc(lb.AlgorithmNames(), func(name string) bool { return len(name) <= 3 || name == "random" }) // IPVS', and a word
	for _, tt := range []struct {
		of     string
		share  float64
		least  int // names that there are, so that the test looks for something
		prefix string
		names  []string
	}{
		{"option", 1. / 4, 40, "", options},
		{"reason", 1. / 2, 15, "REASON_", reasons},
		{"algorithm", 1, 3, "ALGORITHM_", algorithms},
		{"annotation", 1. / 2, 8, "", annotations},
	} {
		r := recipes[tt.of]
		if r == nil {
			t.Errorf("%s has no recipe for a new %s", contributing, tt.of)
			continue
		}
		if r.steps > r.most || r.steps == 0 {
			t.Errorf("a new %s takes %d files, and the recipe says at most %d", tt.of, r.steps, r.most)
		}
		for _, pattern := range r.files {
			if found, err := fs.Glob(tree, strings.TrimSuffix(pattern, "/...")); err != nil || len(found) == 0 {
				t.Errorf("the recipe for a new %s names %s, which is no file", tt.of, pattern)
			}
		}
		if len(tt.names) < tt.least {
			t.Errorf("only %d names of a %s were found", len(tt.names), tt.of)
		}
		for _, name := range listsOf(files, tt.share, tt.prefix, tt.names) {
			if !r.has(name) && !examples(name) {
				t.Errorf("%s lists what a new %s is one of, and is not in the recipe in %s: have it follow from another list, or add it", name, tt.of, contributing)
			}
		}
	}
}

// examples reports whether a file only has cases of tests, which a new thing gets where they fit.
func examples(name string) bool {
	return strings.HasSuffix(name, "_test.go") && strings.HasPrefix(name, "cmd/")
}

// A list that no recipe names is found, in whatever form it has the names.
func TestPlantedList(t *testing.T) {
	names := []string{"no-backend", "bad-table", "too-big", "flow-race"}
	for content, is := range map[string]bool{
		`[]string{"no-backend", "bad-table"}`:             true,
		"REASON_NO_BACKEND, REASON_TOO_BIG,":              true,
		"--no-backend=x --bad-table":                      true,
		`"no-backend"`:                                    false,
		"no-backends and bad-tables, XREASON_TOO_BIG":     false,
		`{"no-backend": 1, "flow-race": 2, "else": true}`: true,
	} {
		if found := listsOf(map[string]map[string]bool{"a": wordsOf(content)}, 1./2, "REASON_", names); (len(found) == 1) != is {
			t.Errorf("%s: %v", content, found)
		}
	}
	r := recipesIn("### A new bird: at most 2 files\n\n1. `pkg/a.go`: the `feather`\n2. `pkg/*.h`, or\n   `pkg/b`: it\n\nThen run `go test ./pkg/x`.\n\n## Else\n\n1. `pkg/z.go`\n")["bird"]
	if r == nil || r.most != 2 || r.steps != 2 || len(r.files) != 3 || !r.has("pkg/b/c.go") || !r.has("pkg/z.h") || r.has("pkg/z.go") {
		t.Errorf("read %+v", r)
	}
}
