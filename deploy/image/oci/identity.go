package oci

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// nameAnnotation is where a container runtime looks for an image's name.
const nameAnnotation = "io.containerd.image.name"

// Identity identifies an image: another image may have the same name, but not the same digest.
type Identity struct{ Name, Digest string }

// Repository returns the name without its tag.
func (i Identity) Repository() string {
	slash := strings.LastIndexByte(i.Name, '/')
	if colon := strings.LastIndexByte(i.Name, ':'); colon > slash {
		return i.Name[:colon]
	}
	return i.Name
}

// Identify returns the identity of the only image in an archive.
func Identify(path string) (Identity, error) {
	file, err := os.Open(path)
	if err != nil {
		return Identity{}, fmt.Errorf("identify image: %w", err)
	}
	defer file.Close()
	id, err := identify(tar.NewReader(file))
	if err != nil {
		return Identity{}, fmt.Errorf("identify image %s: %w", path, err)
	}
	return id, nil
}

func identify(archive *tar.Reader) (Identity, error) {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return Identity{}, errors.New("it has no index.json, so it is no OCI image layout")
		}
		if err != nil {
			return Identity{}, err
		}
		if header.Name != "index.json" {
			continue
		}
		var index struct{ Manifests []descriptor }
		if err := json.NewDecoder(archive).Decode(&index); err != nil {
			return Identity{}, err
		}
		if len(index.Manifests) != 1 || index.Manifests[0].Annotations[nameAnnotation] == "" {
			return Identity{}, errors.New("it does not hold one image that has a name")
		}
		return Identity{index.Manifests[0].Annotations[nameAnnotation], index.Manifests[0].Digest}, nil
	}
}
