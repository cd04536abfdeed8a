package debian

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Module is a kernel module.
type Module struct {
	Name    string
	Content []byte
}

// Modules returns the modules with the given names and everything that they depend on, in loading
// order. It leaves out modules built into the kernel, and fails if a module does not exist. It
// unpacks compressed modules with the busybox at the given path.
func (k *Kernel) Modules(busybox string, names ...string) ([]Module, error) {
	files, err := k.moduleFiles()
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(k.modules, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("list modules of kernel %s: %w", k.Kernel, err)
	}
	var loaded []Module
	var load func(name string) error
	load = func(name string) error {
		if slices.ContainsFunc(loaded, func(m Module) bool { return m.Name == name }) {
			return nil
		}
		path, ok := files[name]
		if !ok {
			return fmt.Errorf("find module %s: kernel %s has none", name, k.Kernel)
		}
		content, err := readModule(busybox, path)
		if err != nil {
			return err
		}
		depends, err := dependsOn(content)
		if err != nil {
			return fmt.Errorf("read module %s: %w", path, err)
		}
		for _, name := range depends {
			if err := load(name); err != nil {
				return err
			}
		}
		loaded = append(loaded, Module{Name: name, Content: content})
		return nil
	}
	for _, name := range names {
		if isBuiltin(string(builtin), name) {
			continue
		}
		if err := load(name); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

// moduleFiles returns the paths of all modules by name. Names have underscores where files may have
// dashes.
func (k *Kernel) moduleFiles() (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(k.modules, func(path string, entry fs.DirEntry, err error) error {
		if name, ok := moduleName(path); ok && err == nil {
			files[name] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list modules of kernel %s: %w", k.Kernel, err)
	}
	return files, nil
}

func moduleName(path string) (string, bool) {
	name, compression, ok := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_"), ok && (compression == "" || compression == ".xz")
}

func isBuiltin(list, name string) bool {
	for path := range strings.FieldsSeq(list) {
		if found, ok := moduleName(path); ok && found == name {
			return true
		}
	}
	return false
}

func readModule(busybox, path string) ([]byte, error) {
	if !strings.HasSuffix(path, ".xz") {
		return os.ReadFile(path)
	}
	content, err := exec.Command(busybox, "xzcat", path).Output()
	if err != nil {
		return nil, fmt.Errorf("unpack module %s: %w", path, err)
	}
	return content, nil
}

// dependsOn returns the names of the modules that a module needs, according to its .modinfo.
func dependsOn(module []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, errors.New("the module has no .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if names, ok := bytes.CutPrefix(field, []byte("depends=")); ok {
			return strings.FieldsFunc(string(names), func(r rune) bool { return r == ',' }), nil
		}
	}
	return nil, nil
}
