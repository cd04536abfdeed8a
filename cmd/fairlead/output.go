package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

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
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // the output does not go into a web page
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	out := text.Bytes()
	if inv.format == formatYAML {
		var err error
		if out, err = yaml.JSONToYAML(out); err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
	}
	_, err := inv.Stdout.Write(out)
	return err
}
