// Package image writes container images without a registry and without a container engine: from Debian packages and
// programs to one archive that a container runtime imports.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Layer is an uncompressed tar file and its digest. Images may share it.
type Layer struct {
	path   string
	digest string
	size   int64
}

// Image is what a container is started from.
type Image struct {
	Names      []string // such as registry.k8s.io/pause:3.10.2
	Layers     []*Layer
	Entrypoint []string
	Cmd        []string
	User       string
}

// descriptor points to a blob, in the form of the OCI image specification.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
)

// archive is an OCI image layout that is being written as a tar file.
type archive struct {
	tar  *tar.Writer
	have map[string]bool // digests of blobs that are written
}

// Write writes images as one archive. The file is either whole or not there.
func Write(path string, images []Image) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".images-*")
	if err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
	}()
	a := &archive{tar: tar.NewWriter(file), have: map[string]bool{}}
	var manifests []descriptor
	for _, i := range images {
		found, err := a.add(i)
		if err != nil {
			return fmt.Errorf("write image %s: %w", i.Names[0], err)
		}
		manifests = append(manifests, found...)
	}
	if err := a.finish(manifests); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	if err := errors.Join(file.Chmod(0o644), file.Close()); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	return os.Rename(file.Name(), path)
}

// add writes an image and returns a descriptor for each of its names.
func (a *archive) add(i Image) ([]descriptor, error) {
	layers, ids := []descriptor{}, []string{}
	for _, l := range i.Layers {
		if err := a.addLayer(l); err != nil {
			return nil, err
		}
		layers = append(layers, descriptor{MediaType: mediaLayer, Digest: l.digest, Size: l.size})
		ids = append(ids, l.digest)
	}
	type object = map[string]any
	config, err := a.addJSON(mediaConfig, object{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config": object{
			"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "User": i.User,
		},
		"rootfs": object{"type": "layers", "diff_ids": ids},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := a.addJSON(mediaManifest, object{"schemaVersion": 2, "mediaType": mediaManifest, "config": config, "layers": layers})
	if err != nil {
		return nil, err
	}
	var named []descriptor
	for _, name := range i.Names {
		d := manifest
		_, tag, _ := strings.Cut(filepath.Base(name), ":")
		d.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
		named = append(named, d)
	}
	return named, nil
}

func (a *archive) addLayer(l *Layer) error {
	if a.have[l.digest] {
		return nil
	}
	file, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer file.Close()
	return a.addBlob(l.digest, l.size, file)
}

func (a *archive) addJSON(media string, value any) (descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	sum := sha256.Sum256(text)
	d := descriptor{MediaType: media, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(text))}
	if a.have[d.Digest] {
		return d, nil
	}
	return d, a.addBlob(d.Digest, d.Size, bytes.NewReader(text))
}

func (a *archive) addBlob(digest string, size int64, content io.Reader) error {
	a.have[digest] = true
	return a.addFile("blobs/sha256/"+strings.TrimPrefix(digest, "sha256:"), size, content)
}

func (a *archive) addFile(name string, size int64, content io.Reader) error {
	if err := a.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := io.Copy(a.tar, content)
	return err
}

func (a *archive) finish(manifests []descriptor) error {
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": manifests})
	if err != nil {
		return err
	}
	const layout = `{"imageLayoutVersion":"1.0.0"}`
	if err := a.addFile("oci-layout", int64(len(layout)), strings.NewReader(layout)); err != nil {
		return err
	}
	if err := a.addFile("index.json", int64(len(index)), bytes.NewReader(index)); err != nil {
		return err
	}
	return a.tar.Close()
}
