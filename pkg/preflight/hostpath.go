package preflight

import (
	"path"
	"strings"
)

// onHost returns the path by which a directory that this container sees is known on the node, so
// that whoever reads it finds the directory there. It returns dir itself outside of containers, and
// if the mounts of the node's first process cannot be read.
func (r Root) onHost(dir string) string {
	own, host := r.mounts("proc/self/mountinfo"), r.mounts("proc/1/mountinfo")
	var here *mount
	for i := range own { // later mounts cover earlier ones
		if m := &own[i]; isBelow(dir, m.at) && (here == nil || len(m.at) >= len(here.at)) {
			here = m
		}
	}
	if here == nil {
		return dir
	}
	inside := path.Join(here.root, strings.TrimPrefix(dir, here.at)) // in the mounted file system
	var there *mount
	for i := range host { // the mount of the whole file system has the usual path
		if m := &host[i]; m.device == here.device && isBelow(inside, m.root) && (there == nil || len(m.root) < len(there.root)) {
			there = m
		}
	}
	if there == nil {
		return dir
	}
	return path.Join(there.at, strings.TrimPrefix(inside, there.root))
}

func isBelow(dir, top string) bool {
	return dir == top || strings.HasPrefix(dir, strings.TrimSuffix(top, "/")+"/")
}

// mount is a line of a mountinfo: the directory root of the file system on a device is at a path.
type mount struct{ device, root, at string }

func (r Root) mounts(name string) (list []mount) {
	text, _ := r.read(name) // without it nothing is known
	for line := range strings.Lines(text) {
		const device, root, at = 2, 3, 4
		if words := strings.Fields(line); len(words) > at {
			list = append(list, mount{words[device], unescaped(words[root]), unescaped(words[at])})
		}
	}
	return list
}

// unescaped returns a path of a mountinfo, where white space and backslashes are octal numbers.
func unescaped(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
