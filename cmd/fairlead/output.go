package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

func formats() []string { return []string{formatTable, formatJSON, formatYAML} }

func checkFormat(format string) error {
	if slices.Contains(formats(), format) {
		return nil
	}
	return fmt.Errorf("unknown output %q: use %s", format, strings.Join(formats(), ", "))
}

// print writes value in the format of --output. table writes the format for people.
func (inv *invocation) print(value any, table func(io.Writer) error) error {
	if inv.format == formatTable {
		return table(inv.Stdout)
	}
	out, err := encode(value, inv.format, "  ")
	if err == nil && inv.format == formatYAML {
		var text []byte
		if text, err = yaml.JSONToYAML(out); !bytes.ContainsFunc(text, isHidden) {
			out = text
		} // else what is printed looks like JSON, which is YAML too
	}
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = inv.Stdout.Write(out)
	return err
}

// encode returns a value as JSON, or as YAML that looks like it. Names come from others and the
// output may go to a terminal, so what would change how it shows the rest is escaped.
func encode(value any, format, indent string) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // the output does not go into a web page
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	var out []byte
	for _, r := range text.String() {
		switch high, low := utf16.EncodeRune(r); {
		case !isHidden(r):
			out = utf8.AppendRune(out, r)
		case r <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		case format == formatYAML:
			out = fmt.Appendf(out, `\U%08x`, r)
		default:
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}
	return out, nil
}

// isHidden reports whether a terminal may take a character for something else than itself: controls,
// which JSON does not escape beyond ASCII, and such as turn the direction of text around.
func isHidden(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
