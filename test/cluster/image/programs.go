package image

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"fairlead.io/fairlead/deploy/image/oci"
)

// BuildControlPlane writes the archive of images that have a program and nothing else, each where upstream's image of that
// name has it.
func BuildControlPlane(archive string, programs map[string]string) (err error) {
	work, err := os.MkdirTemp(filepath.Dir(archive), ".layers-*")
	if err != nil {
		return fmt.Errorf("build images: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	layers := &layers{work: work}
	var images []oci.Image
	for name, program := range programs {
		command, _, _ := strings.Cut(path.Base(name), ":")
		layer := layers.make(command, func(l layer) { l.Program("usr/local/bin/"+command, program) })
		images = append(images, oci.Image{Names: []string{name}, Layers: []*oci.Layer{layer}, Entrypoint: []string{"/usr/local/bin/" + command}})
	}
	if layers.err != nil {
		return fmt.Errorf("build images: %w", layers.err)
	}
	return oci.Write(archive, images)
}
