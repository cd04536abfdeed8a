package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// document is one document of a file.
type document struct {
	line int    // on which text begins
	text []byte // as in the file
	json []byte // the same as JSON
	yaml bool   // whether text is YAML

	items []int // the lines of a List's items, once itemLine was called
}

// documents splits a file. The caller converts each document to JSON, so that not all of them are
// in memory twice.
func documents(name string, data []byte) ([]document, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("the file is not UTF-8 text: convert it")
	}
	if filepath.Ext(name) == ".json" {
		return splitJSON(data)
	}
	return splitYAML(data), nil
}

// splitYAML splits at the document markers, which YAML reserves wherever they begin a line. The
// YAML decoder reads only the first document of its input.
func splitYAML(data []byte) []document {
	var docs []document
	start, first, at := 0, 1, 0
	cut := func(end, next int) {
		text := data[start:end]
		if _, content := firstContent(text); content != nil {
			docs = append(docs, document{line: first, text: text, yaml: true})
		} else if hasDirective(text) {
			return // it belongs to the document after the marker
		}
		start, first = end, next
	}
	for line, text := range lines(data) {
		if isMarker(text, "---") {
			cut(at, line)
		}
		at += len(text)
		if isMarker(text, "...") {
			cut(at, line+1)
		}
	}
	cut(len(data), 0)
	return docs
}

// lines yields the numbered lines of a text, including their line breaks. Documents must be cut
// exactly where the YAML decoder would, and it accepts other line breaks besides
// .
func lines(data []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for n := 1; len(data) > 0; n++ {
			end := lineEnd(data)
			if !yield(n, data[:end]) {
				return
			}
			data = data[end:]
		}
	}
}

// lineEnd returns the length of the first line of data, including its line break.
func lineEnd(data []byte) int {
	for i := range data {
		if n := breakLen(data[i:]); n > 0 {
			return i + n
		}
	}
	return len(data)
}

// breakLen returns the length of the line break that data begins with, or 0 if it begins with none.
func breakLen(data []byte) int {
	switch c := data[0]; {
	case c > '\r' && c < 0x80:
		return 0
	case bytes.HasPrefix(data, []byte("\r\n")), bytes.HasPrefix(data, []byte("\u0085")):
		return 2
	case c == '\n', c == '\r':
		return 1
	case bytes.HasPrefix(data, []byte("\u2028")), bytes.HasPrefix(data, []byte("\u2029")):
		return 3
	}
	return 0
}

func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t' || breakLen(rest) > 0)
}

func hasDirective(text []byte) bool {
	for _, line := range lines(text) {
		if line[0] == '%' {
			return true
		}
	}
	return false
}

// firstContent returns the first line of a text that is not a comment, a directive or an empty
// marker.
func firstContent(text []byte) (line int, content []byte) {
	for line, content := range lines(text) {
		if isMarker(content, "---") || isMarker(content, "...") {
			content = content[3:]
		} else if content[0] == '%' {
			continue
		}
		if content = bytes.TrimSpace(content); len(content) > 0 && content[0] != '#' {
			return line, content
		}
	}
	return 1, nil
}

// splitJSON splits a stream of JSON values.
func splitJSON(data []byte) ([]document, error) {
	var docs []document
	in := json.NewDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		if err := in.Decode(&raw); err == io.EOF {
			return docs, nil
		} else if err != nil {
			at := in.InputOffset()
			var syntax *json.SyntaxError
			switch {
			case errors.As(err, &syntax):
				at = syntax.Offset
			case errors.Is(err, io.ErrUnexpectedEOF):
				at = int64(len(bytes.TrimSpace(data)))
			}
			return nil, &FileError{Line: lineAt(data, at), Message: fmt.Sprintf("parse JSON: %v", err)}
		}
		start := int(in.InputOffset()) - len(raw)
		docs = append(docs, document{line: lineAt(data, int64(start)), text: raw})
	}
}

// lineAt returns the line at offset, counting from 1.
func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), int64(len(data)))], []byte("\n"))
}

// convert fills in the JSON form of the document.
func (d *document) convert() error {
	if !d.yaml {
		d.json = d.text
		return nil
	}
	out, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return d.yamlError(err)
	}
	if _, content := firstContent(d.text); bytes.IndexByte([]byte("{!&"), content[0]) >= 0 && !d.single() {
		return &FileError{Line: d.first(), Message: "parse YAML: more follows the end of the object: write --- between documents"}
	}
	d.json = out
	return nil
}

// yamlLine finds the line in an error of the YAML decoder. The decoder counts lines from 0 in
// errors that match yamlGrammar, and from 1 in errors of its scanner.
var (
	yamlLine    = regexp.MustCompile(`line (\d+): `)
	yamlGrammar = regexp.MustCompile(`did not find expected (key|',' or|'-' indicator|node content|<)`)
)

// yamlError turns an error of the YAML decoder into a FileError. It takes the first line number,
// which counts from the start of the document, out of the message.
func (d *document) yamlError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	text, _, _ = strings.Cut(text, "\n")
	line := d.first()
	if at := yamlLine.FindStringSubmatchIndex(text); at != nil {
		if n, err := strconv.Atoi(text[at[2]:at[3]]); err == nil {
			if yamlGrammar.MatchString(text) {
				n++
			}
			line = min(d.line+n, d.line+bytes.Count(bytes.TrimSpace(d.text), []byte("\n"))+1) - 1
		}
		text = text[:at[0]] + text[at[1]:]
	}
	return &FileError{Line: line, Message: "parse YAML: " + text}
}

// first returns the line on which the document's content begins.
func (d *document) first() int {
	if !d.yaml {
		return d.line
	}
	line, _ := firstContent(d.text)
	return d.line + line - 1
}
