package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"
)

// What others have named cannot change how a terminal shows the rest of the output, in any format,
// and whoever parses the output gets the name as it is.
func TestHiddenCharacters(t *testing.T) {
	for _, name := range []string{"web\u202ebew", "web\u009b2J", "web\x7f", "web\U000e0041", "plain"} {
		for format, parse := range map[string]func([]byte, any) error{
			formatJSON: json.Unmarshal,
			formatYAML: func(text []byte, into any) error { return yaml.Unmarshal(text, into) },
		} {
			var out bytes.Buffer
			inv := &invocation{env: &env{Stdout: &out}, format: format}
			if err := inv.print(map[string]string{"name": name}, nil); err != nil {
				t.Fatal(err)
			}
			if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				t.Errorf("%s of %q is %q", format, name, out.String())
			}
			var got map[string]string
			if err := parse(out.Bytes(), &got); err != nil || got["name"] != name {
				t.Errorf("%s of %q is parsed as %q: %v", format, name, got["name"], err)
			}
		}
	}
}
