package source

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every annotation has its row in the table, and is in the docs.
func TestAnnotationKinds(t *testing.T) {
	code, err := os.ReadFile("annotations.go")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("found %d pages, %v", len(pages), err)
	}
	var docs strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		docs.Write(text)
	}
	kinds := annotationKinds()
	found := regexp.MustCompile(`(?m)^\tannotation\w+ += annotationPrefix \+ "(.+)"`).FindAllStringSubmatch(string(code), -1)
	for _, m := range found {
		name := annotationPrefix + m[1]
		if len(kinds[name]) == 0 {
			t.Errorf("annotation %s is not in the table of kinds", name)
		}
		if !strings.Contains(docs.String(), name) {
			t.Errorf("annotation %s is in no page of docs", name)
		}
	}
	if len(found) != len(kinds) {
		t.Errorf("the table has %d annotations, and %d are declared", len(kinds), len(found))
	}
}
