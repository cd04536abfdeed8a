package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/lb"
)

// What values.yaml and values.schema.json have of the values that set options follows from options.yaml. This test
// is not parallel: others, which generate more from these files, run after it.
func TestValuesFollowFromOptions(t *testing.T) {
	table := rows(t)
	hold(t, "charts/fairlead/values.yaml", valuesWith(read(t, "values.yaml"), table))
	text, err := schemaWith(read(t, "values.schema.json"), table)
	if err != nil {
		t.Fatal(err)
	}
	hold(t, "charts/fairlead/values.schema.json", text)
}

func read(t testing.TB, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// valuesWith returns values.yaml with the comments and defaults of the table. A value that is not there yet becomes
// the last of those with the same parent.
func valuesWith(text string, table []row) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, r := range table {
		if r.Value == "" {
			continue
		}
		names, at := strings.Split(r.Value, "."), linesOf(lines)
		indent := strings.Repeat("  ", len(names)-1)
		entry := []string{indent + "# -- " + r.Says, indent + names[len(names)-1] + ": " + inYAML(r.Default)}
		if line, found := at[r.Value]; found {
			lines = slices.Replace(lines, line-1, line+1, entry...)
			continue
		}
		end, parents := len(lines), len(names)-1
		for ; parents > 0; parents-- {
			if line, found := at[strings.Join(names[:parents], ".")]; found {
				for end = line + 1; end < len(lines) && strings.HasPrefix(lines[end], strings.Repeat("  ", parents)); {
					end++
				}
				break
			}
		}
		for n := len(names) - 2; n >= parents; n-- {
			entry = slices.Insert(entry, 0, strings.Repeat("  ", n)+names[n]+":")
		}
		lines = slices.Insert(lines, end, entry...)
	}
	return strings.Join(lines, "\n") + "\n"
}

// linesOf returns the line of each key in values.yaml.
func linesOf(lines []string) map[string]int {
	key := regexp.MustCompile(`^( *)([A-Za-z0-9]+):`)
	at, above := map[string]int{}, []string(nil)
	for i, line := range lines {
		if found := key.FindStringSubmatch(line); found != nil {
			above = append(above[:len(found[1])/2], found[2])
			at[strings.Join(above, ".")] = i
		}
	}
	return at
}

// inYAML returns a value as values.yaml has it.
func inYAML(v any) string {
	plain := regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9_./=,:-]*$`)
	switch v := v.(type) {
	case nil:
		return "null"
	case []any:
		var list []string
		for _, item := range v {
			list = append(list, inYAML(item))
		}
		return "[" + strings.Join(list, ", ") + "]"
	case string:
		if !plain.MatchString(v) || slices.Contains([]string{"true", "false", "null", "on", "off", "yes", "no"}, v) {
			return fmt.Sprintf("%q", v)
		}
		return v
	}
	return fmt.Sprint(v)
}

// schemaWith returns values.schema.json with what the table says of the values.
func schemaWith(text string, table []row) (string, error) {
	var root values
	if err := json.Unmarshal([]byte(text), &root); err != nil {
		return "", err
	}
	words := map[string][]string{}
	for _, o := range config.Options() {
		words[o.Name] = o.Values
	}
	words["algorithm"] = lb.AlgorithmNames() // the option passes these on
	for _, r := range table {
		if r.Value == "" {
			continue
		}
		names := strings.Split(r.Value, ".")
		at := root
		for _, name := range names[:len(names)-1] {
			properties := at["properties"].(values)
			if properties[name] == nil {
				properties[name] = values{"type": "object", "additionalProperties": false, "properties": values{}}
			}
			at = properties[name].(values)
		}
		at["properties"].(values)[names[len(names)-1]] = schemaOf(&r, words[r.Option])
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(root)
	return out.String(), err
}

// schemaOf returns what the schema says of a value: what its row says, or else what follows from the words that the option
// takes, or from the default.
func schemaOf(r *row, words []string) values {
	if r.Schema != nil {
		return r.Schema
	}
	if _, list := r.Default.([]any); list {
		return values{"type": "array", "items": values{"type": "string"}}
	}
	kind := "string"
	if slices.Equal(words, []string{"true", "false"}) {
		kind = "boolean"
	} else if len(words) > 0 {
		var list []any
		for _, word := range words {
			for written, means := range r.Words {
				if means == word {
					word = written
				}
			}
			switch word {
			case "true", "false":
				list = append(list, word == "true")
			default:
				list = append(list, word)
			}
		}
		return values{"enum": list}
	}
	if r.Default == nil {
		return values{"type": []any{kind, "null"}}
	}
	return values{"type": kind}
}

// A new row needs nothing but itself: the value appears with its comment and type, below the parent that there is, or
// with a new one.
func TestNewRow(t *testing.T) {
	t.Parallel()
	const text = "# -- One.\none: 1\nbpf:\n  # -- Root.\n  root: /a\n\n# -- Last.\nlast: x\n"
	const schema = `{"properties": {"bpf": {"properties": {"root": {"type": "string"}}}}}`
	for _, tt := range []struct {
		row          row
		values, kind string
	}{
		{row{Option: "vip-ping", Value: "bpf.root", Says: "Ping.", Default: true},
			"# -- One.\none: 1\nbpf:\n  # -- Ping.\n  root: true\n\n# -- Last.\nlast: x\n", `"root":{"type":"boolean"}`},
		{row{Option: "vip-ping", Value: "bpf.ping", Says: "Ping.", Default: false},
			"# -- One.\none: 1\nbpf:\n  # -- Root.\n  root: /a\n  # -- Ping.\n  ping: false\n\n# -- Last.\nlast: x\n", `"ping":{"type":"boolean"}`},
		{row{Option: "xdp", Value: "net.xdp", Says: "XDP.", Default: "auto", Words: map[string]string{"disabled": "off"}},
			text + "net:\n  # -- XDP.\n  xdp: auto\n", `"xdp":{"enum":["auto","native","generic","disabled"]}`},
		{row{Option: "snat-ports", Value: "ports", Says: "Ports."}, text + "# -- Ports.\nports: null\n", `"ports":{"type":["string","null"]}`},
		{row{Option: "l7-proxies", Value: "proxies", Says: "Proxies.", Default: []any{}}, text + "# -- Proxies.\nproxies: []\n", `"proxies":{"items":{"type":"string"},"type":"array"}`},
	} {
		if diff := cmp.Diff(tt.values, valuesWith(text, []row{tt.row})); diff != "" {
			t.Errorf("%s: values.yaml (-want +have):\n%s", tt.row.Value, diff)
		}
		have, err := schemaWith(schema, []row{tt.row})
		if err != nil {
			t.Fatal(err)
		}
		if squeezed := strings.Join(strings.Fields(have), ""); !strings.Contains(squeezed, tt.kind) {
			t.Errorf("%s: no %s in %s", tt.row.Value, tt.kind, squeezed)
		}
	}
}
