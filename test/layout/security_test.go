package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// promises returns what is wrong with the tables of a threat model: in the last column of each row
// is a list of links to tests or stories that exist, a link to the limits, or the words "none yet".
// read returns the text
// of a file, by its path from the page.
func promises(page string, read func(string) (string, error)) (problems []string, rows int) {
	_, model, found := strings.Cut(page, "\n## Threat model\n")
	if !found {
		return []string{"there is no threat model"}, 0
	}
	model, _, _ = strings.Cut(model, "\n## ")
	link := regexp.MustCompile(`\[(Test\w+|[\w-]+)\]\(([^)]+_test\.go|[^)]+\.txtar)\)`)
	for line := range strings.Lines(model) {
		for _, named := range link.FindAllStringSubmatch(line, -1) {
			text, err := read(named[2])
			is := "\nfunc " + named[1] + "("
			if strings.HasSuffix(named[2], ".txtar") {
				is = ""
			}
			if err != nil || !strings.Contains(text, is) {
				problems = append(problems, fmt.Sprintf("%s is not in %s", named[1], named[2]))
			}
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| it tries to |") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		shown := strings.TrimSpace(cells[len(cells)-1])
		if rest := strings.Trim(link.ReplaceAllString(shown, ""), ", "); len(cells) != 3 || rest != "" && shown != "none yet" && shown != "[limit](limits.md#trust)" || shown == "" {
			problems = append(problems, "neither tests nor none: "+strings.TrimSpace(line))
		}
	}
	return problems, rows
}

// Every line of the threat model names tests that exist, or says that there is none.
func TestThreatModel(t *testing.T) {
	const docs = "../../docs"
	page, err := os.ReadFile(filepath.Join(docs, "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	problems, rows := promises(string(page), func(path string) (string, error) {
		text, err := os.ReadFile(filepath.Join(docs, path))
		return string(text), err
	})
	for _, problem := range problems {
		t.Error(problem)
	}
	if rows < 30 {
		t.Errorf("only %d rows were read", rows)
	}
}

func TestPlantedPromises(t *testing.T) {
	read := func(path string) (string, error) {
		switch path {
		case "a.txtar":
			return "-- input --", nil
		case "b_test.go", "b.txtar":
			return "", os.ErrNotExist
		}
		return "package a\n\nfunc TestA(t *testing.T) {\n", nil
	}
	for _, tt := range []struct {
		line string
		fine bool
	}{
		{"| lie | fails | [TestA](a_test.go) |", true},
		{"| lie | fails | [TestA](a_test.go), [TestA](a_test.go) |", true},
		{"| lie | works | none yet |", true},
		{"| lie | works | [limit](limits.md#trust) |", true},
		{"| lie | works | [limit](limits.md#trust), [TestB](a_test.go) |", false},
		{"a sentence about [TestA](a_test.go)", true},
		{"a sentence about [TestB](a_test.go)", false},
		{"| lie | fails | [TestB](a_test.go) |", false},
		{"| lie | fails | [TestA](b_test.go) |", false},
		{"| lie | fails | [a-story](a.txtar), [TestA](a_test.go) |", true},
		{"| lie | fails | [a-story](b.txtar) |", false},
		{"| lie | fails | [TestA](a.md) |", false},
		{"| lie | fails | TestA |", false},
		{"| lie | fails | [TestA](a_test.go), believe it |", false},
		{"| lie | fails | |", false},
		{"| lie | fails |", false},
	} {
		if problems, _ := promises("\n## Threat model\n"+tt.line+"\n", read); tt.fine != (len(problems) == 0) {
			t.Errorf("%s: %q", tt.line, problems)
		}
	}
}
