package main

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"fairlead.io/fairlead/deploy/image/oci"
)

// repository is the image's name without its tag.
const repository = "fairlead.io/fairlead"

// writeImage writes an archive with an image that holds the agent and the plugin and nothing else, and returns the image's
// name. The same programs give the same archive, byte for byte; others give another name, so nodes change over to it.
func writeImage(archive, agent, plugin string) (name string, err error) {
	sum := sha256.New()
	for _, program := range []string{agent, plugin} {
		if err := inspect(program, sum); err != nil {
			return "", err
		}
	}
	temp, err := os.MkdirTemp(filepath.Dir(archive), ".agent-*")
	if err != nil {
		return "", fmt.Errorf("write image: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	files := oci.NewLayer(filepath.Join(temp, "layer.tar"))
	files.Program("fairlead", agent)
	files.Program("fairlead-cni", plugin)
	layer, err := files.Close()
	if err != nil {
		return "", err
	}
	name = repository + ":" + hex.EncodeToString(sum.Sum(nil))[:12]
	return name, oci.Write(archive, []oci.Image{{
		Names: []string{name}, Layers: []*oci.Layer{layer}, Entrypoint: []string{"/fairlead"},
	}})
}

// inspect adds a program's content to a sum. One that needs a loader or libraries would not start where there is nothing else.
func inspect(program string, sum io.Writer) error {
	file, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("open a program (make build): %w", err)
	}
	defer file.Close()
	binary, err := elf.NewFile(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", program, err)
	}
	for _, part := range binary.Progs {
		if part.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not linked statically: build it with CGO_ENABLED=0, as make build does", program)
		}
	}
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, 1<<62)); err != nil {
		return fmt.Errorf("read %s: %w", program, err)
	}
	return nil
}
