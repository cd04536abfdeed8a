package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

const docsDir = "../../docs/cli"

// TestDocs compares docs/cli with the help of the commands.
func TestDocs(t *testing.T) {
	pages := map[string]string{}
	addPages(t, newRootCommand(&invocation{env: &env{}}), pages)
	if *update {
		if err := os.RemoveAll(docsDir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(docsDir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range pages {
			if err := os.WriteFile(filepath.Join(docsDir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	have := map[string]string{}
	entries, err := os.ReadDir(docsDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(docsDir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		have[entry.Name()] = string(text)
	}
	if diff := cmp.Diff(have, pages); diff != "" {
		t.Errorf("docs/cli differs from the help of the commands; run go test ./cmd/fairlead -run TestDocs -update:\n%s",
			diff)
	}
}

func addPages(t *testing.T, cmd *cobra.Command, pages map[string]string) {
	cmd.DisableAutoGenTag = true
	var page bytes.Buffer
	page.WriteString("<!-- Generated from cmd/fairlead: go test ./cmd/fairlead -run TestDocs -update -->\n\n")
	if err := doc.GenMarkdown(cmd, &page); err != nil {
		t.Fatal(err)
	}
	pages[filenameOf(cmd)] = page.String()
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			addPages(t, child, pages)
		}
	}
}

// filenameOf returns the name by which pages link to the page of a command.
func filenameOf(cmd *cobra.Command) string {
	name := cmd.Name()
	for parent := cmd.Parent(); parent != nil; parent = parent.Parent() {
		name = parent.Name() + "_" + name
	}
	return name + ".md"
}
