package config

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Whatever a file of the configuration directory contains, either it is the option's value, or the
// error names the option and is short and printable.
func FuzzFile(f *testing.F) {
	options := Options()
	for i, o := range options {
		f.Add(uint8(i), []byte(o.Default))
		f.Add(uint8(i), []byte("\x1b[2J\xff\n\n"))
		f.Add(uint8(i), []byte("1s,10.0.0.0/8,::/0,eth*,80-90,[::1]:80\n"))
	}
	f.Fuzz(func(t *testing.T, index uint8, content []byte) {
		name := options[int(index)%len(options)].Name
		if name == configDir {
			return
		}
		cfg, _, err := environment{files: map[string]string{name: string(content)}, dirFrom: "flag"}.load(t)
		if err == nil {
			for _, o := range cfg.Origins() {
				if o.Name == name && o.Value != strings.TrimRight(string(content), "\r\n") {
					t.Errorf("%s is %q", name, o.Value)
				}
			}
			return
		}
		// Options that do not go together are told by the names of both.
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
		for line := range strings.Lines(err.Error()) {
			line = strings.TrimSuffix(line, "\n")
			if len(line) > 2000 || !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q", line)
			}
		}
	})
}
