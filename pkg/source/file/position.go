package file

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// maxLocate limits the documents in which the line of a field is looked up, because that parses the
// document once more.
const maxLocate = 8 << 20

// lineOf returns the line of the field at path, or of its nearest parent that can be found.
func (d *document) lineOf(path []string) int {
	if len(path) == 0 || len(d.text) > maxLocate {
		return d.first()
	}
	if !d.yaml {
		return d.line + lineAt(d.text, offsetOf(d.text, path)) - 1
	}
	if root := d.tree(); root != nil {
		return d.line + lineIn(root, path) - 1
	}
	return d.first()
}

// itemLine returns the line of an item of a List. It looks up all items at once, since each may be
// asked for.
func (d *document) itemLine(index int) int {
	if d.items == nil && len(d.text) <= maxLocate {
		d.items = d.itemLines()
	}
	if index < len(d.items) {
		return d.items[index]
	}
	return d.first()
}

func (d *document) itemLines() []int {
	lines := []int{}
	if !d.yaml {
		line, counted := d.line, int64(0)
		walk(d.text, func(path []string, end int64) bool {
			if len(path) == 2 && path[0] == "items" {
				line += bytes.Count(d.text[counted:end], []byte("\n"))
				counted = end
				lines = append(lines, line)
			}
			return true
		})
		return lines
	}
	root := d.tree()
	if root == nil {
		return lines
	}
	items, _ := child(root, "items")
	if items == nil || items.Kind != yaml.SequenceNode {
		return lines
	}
	for _, item := range items.Content {
		lines = append(lines, d.line+item.Line-1)
	}
	return lines
}

// tree parses the document into nodes that know their lines, which the strict decoder does not
// keep.
func (d *document) tree() *yaml.Node {
	var root yaml.Node
	if yaml.Unmarshal(d.text, &root) != nil || len(root.Content) == 0 {
		return nil
	}
	return root.Content[0]
}

// single reports whether nothing follows the document's first value. Only a value that ends by
// itself, such as one in braces, can be followed by text that the decoder leaves unread.
func (d *document) single() bool {
	in := yaml.NewDecoder(bytes.NewReader(d.text))
	var node yaml.Node
	return in.Decode(&node) == nil && in.Decode(&node) == io.EOF
}

// lineIn follows path into the tree as far as it can, and returns the line where it ends.
func lineIn(node *yaml.Node, path []string) int {
	line := node.Line
	for _, step := range path {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		next, at := child(node, step)
		if next == nil {
			return line
		}
		node, line = next, at
	}
	return line
}

// child returns the value that step leads to, and the line of its key or dash.
func child(node *yaml.Node, step string) (*yaml.Node, int) {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i+1], node.Content[i].Line
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i].Line
		}
	}
	return nil, 0
}

// splitPath splits a path in the form of the JSON decoders: spec.ports[0].name.
func splitPath(path string) []string {
	var steps []string
	for _, field := range strings.Split(path, ".") {
		name, indexes, _ := strings.Cut(field, "[")
		if name != "" {
			steps = append(steps, name)
		}
		for _, index := range strings.Split(indexes, "[") {
			if index = strings.TrimSuffix(index, "]"); index != "" {
				steps = append(steps, index)
			}
		}
	}
	return steps
}

// joinPath is the reverse of splitPath.
func joinPath(steps []string) string {
	var b strings.Builder
	for _, step := range steps {
		if isIndex(step) {
			b.WriteString("[" + step + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(step)
	}
	return b.String()
}

func isIndex(step string) bool {
	_, err := strconv.ParseUint(step, 10, 32)
	return err == nil
}

// offsetOf returns the offset after the key of the field at path in JSON text.
func offsetOf(data []byte, path []string) (offset int64) {
	walk(data, func(at []string, end int64) bool {
		if slices.Equal(at, path) {
			offset = end
			return false
		}
		return true
	})
	return offset
}

// pathAt returns the path of the value at offset in JSON text.
func pathAt(data []byte, offset int64) (path []string) {
	walk(data, func(at []string, end int64) bool {
		if end >= offset {
			path = slices.Clone(at)
			return false
		}
		return true
	})
	return path
}

// frame is an object or array that walk has entered.
type frame struct {
	array   bool
	index   int
	inValue bool // in an object: the next token is a value
}

// next sets step to the key or index of a token of the frame, and reports whether the token is a
// key.
func (f *frame) next(token json.Token, step *string) bool {
	switch {
	case f.array:
		*step = strconv.Itoa(f.index)
		f.index++
	case f.inValue:
		f.inValue = false
	default:
		*step, _ = token.(string)
		f.inValue = true
		return true
	}
	return false
}

// walk calls visit with the path of every key and every value, and the offset after its first
// token, until visit returns false.
func walk(data []byte, visit func(path []string, end int64) bool) {
	in := json.NewDecoder(bytes.NewReader(data))
	in.UseNumber()
	var frames []frame
	var path []string // one step per frame
	for {
		token, err := in.Token()
		if err != nil {
			return
		}
		delim, _ := token.(json.Delim)
		if delim == ']' || delim == '}' {
			frames = frames[:len(frames)-1]
			path = path[:len(frames)]
			continue
		}
		isKey := false
		if n := len(frames); n > 0 {
			isKey = frames[n-1].next(token, &path[n-1])
		}
		if !visit(path, in.InputOffset()) {
			return
		}
		if !isKey && delim != 0 {
			frames = append(frames, frame{array: delim == '['})
			path = append(path, "")
		}
	}
}
