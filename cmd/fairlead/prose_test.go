package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/config"
)

// prose returns the pages that are written by hand or read like that, by their paths.
func prose(t *testing.T) map[string]string {
	t.Helper()
	paths := []string{"../../README.md", "../../bpf/README.md", "../../deploy/README.md", "../../test/bench/results.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/design/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		paths = append(paths, found...)
	}
	pages := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		pages[path] = string(text)
	}
	return pages
}

var pageLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinks checks that the targets of links exist, including headings within pages.
func TestLinks(t *testing.T) {
	found := 0
	for path, page := range prose(t) {
		for _, m := range pageLink.FindAllStringSubmatch(page, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			found++
			file, heading, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			text, err := os.ReadFile(target)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if heading != "" && !slices.Contains(anchors(string(text)), heading) {
				t.Errorf("%s: %s has no heading #%s", path, target, heading)
			}
		}
	}
	if found == 0 {
		t.Error("no page has a link")
	}
}

// anchors returns the names of a page's headings, as renderers of such pages make them.
func anchors(page string) (names []string) {
	dropped := regexp.MustCompile("[^a-z0-9 _-]")
	for line := range strings.Lines(page) {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			names = append(names, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-"))
		}
	}
	return names
}

var command = regexp.MustCompile("(?m)`fairlead ([a-z][^`\n]*)`|^    (?:\\$ )?fairlead ([a-z].*)$")

// TestProseCommands checks that the commands that pages name exist, with the flags that they are
// given.
func TestProseCommands(t *testing.T) {
	found := 0
	for path, page := range prose(t) {
		for _, m := range command.FindAllStringSubmatch(page, -1) {
			found++
			words := strings.Fields(m[1] + m[2])
			cmd, rest, err := newRootCommand(&invocation{env: &env{}}).Find(words)
			if err != nil || !cmd.HasParent() || cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: fairlead %s: no such command (%v)", path, strings.Join(words, " "), err)
				continue
			}
			for _, word := range rest {
				name, isFlag := strings.CutPrefix(word, "--")
				name, _, _ = strings.Cut(name, "=")
				if isFlag && cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
					t.Errorf("%s: fairlead %s has no flag --%s", path, cmd.Name(), name)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no page names a command")
	}
}

var (
	maturity = regexp.MustCompile(`(?m)^\| [^|]+ \| ([a-z]+) \|`)
	feature  = regexp.MustCompile("(?m)^\\| [^|]+ \\| ([a-z]+) \\| ([^|]+) \\| `--([a-z0-9-]+)`")
)

// TestFeatures checks that docs/features.md names only flags that exist, with their defaults, and
// all that switch something on or off, and explains every maturity that it uses.
func TestFeatures(t *testing.T) {
	page := prose(t)["../../docs/features.md"]
	above, table, _ := strings.Cut(page, "\n| feature |")
	for _, row := range maturity.FindAllStringSubmatch(table, -1) {
		if word := strings.ToUpper(row[1][:1]) + row[1][1:] + ": "; row[1] != "off" && row[1] != "maturity" && !strings.Contains(above, word) {
			t.Errorf("the page does not say what %s means: %s", row[1], row[0])
		}
	}
	rows := feature.FindAllStringSubmatch(page, -1)
	if len(rows) < 10 {
		t.Errorf("%d rows have a flag", len(rows))
	}
	alpha := 0
	for _, row := range rows {
		if row[1] == "alpha" {
			alpha++
		}
		row = row[1:]
		at := slices.IndexFunc(config.Options(), func(o config.Option) bool { return o.Name == row[2] })
		if at < 0 {
			t.Errorf("there is no --%s", row[2])
			continue
		}
		o := config.Options()[at]
		want := o.Shown
		if want == "" {
			want = "`" + o.Default + "`"
		}
		if row[1] != want {
			t.Errorf("--%s: the default is %s, not %s", o.Name, want, row[1])
		}
	}
	if alpha == 0 {
		t.Error("no row is alpha")
	}
	for _, o := range config.Options() {
		if (o.Default == "true" || o.Default == "false") && !strings.Contains(table, "`--"+o.Name+"`") {
			t.Errorf("no row names --%s", o.Name)
		}
	}
}
