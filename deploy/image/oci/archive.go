// Package oci writes container images without a registry or a container engine: layers, and
// archives in the OCI image layout, which container runtimes import.
package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Image is a container image.
type Image struct {
	Names      []string // such as registry.k8s.io/pause:3.10.2
	Arch       string   // as Go names it; empty for this machine's
	Layers     []*Layer
	Entrypoint []string
	Cmd        []string
	User       string
	Created    time.Time // omitted if zero
	Labels     map[string]string
	// Statement is an in-toto statement about this image, without its subject; nil for none.
	Statement *Statement
}

// Statement says what an image is made of, in the form that tools look for beside images.
type Statement struct {
	PredicateType string
	Predicate     any
}

// descriptor points to a blob, as the OCI image specification defines it.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

const (
	mediaLayer           = "application/vnd.oci.image.layer.v1.tar"
	mediaCompressedLayer = "application/vnd.oci.image.layer.v1.tar+gzip"
	mediaConfig          = "application/vnd.oci.image.config.v1+json"
	mediaManifest        = "application/vnd.oci.image.manifest.v1+json"
	mediaIndex           = "application/vnd.oci.image.index.v1+json"
	mediaStatement       = "application/vnd.in-toto+json"
)

// archive is an OCI image layout that is being written as a tar file.
type archive struct {
	tar  *tar.Writer
	have map[string]bool // digests of blobs already written
}

// object is a JSON object. Its keys are written in sorted order, so the same object gives the same
// text.
type object = map[string]any

// Write writes images as one archive. The file is never there in part.
func Write(path string, images []Image) error {
	return create(path, func(a *archive) ([]descriptor, error) {
		var manifests []descriptor
		for _, i := range images {
			manifest, err := a.add(i)
			if err != nil {
				return nil, fmt.Errorf("image %s: %w", i.Names[0], err)
			}
			manifests = append(manifests, named(manifest, i.Names)...)
		}
		return manifests, nil
	})
}

// WriteIndex writes an archive with one image for several architectures, and returns the digest of
// the index, which identifies all of them.
func WriteIndex(path string, names []string, annotations map[string]string, images []Image) (digest string, err error) {
	err = create(path, func(a *archive) ([]descriptor, error) {
		var manifests, statements []descriptor
		for _, i := range images {
			manifest, err := a.add(i)
			if err != nil {
				return nil, fmt.Errorf("image for %s: %w", i.Arch, err)
			}
			manifest.Platform = &platform{Architecture: i.Arch, OS: "linux"}
			manifests = append(manifests, manifest)
			if i.Statement == nil {
				continue
			}
			statement, err := a.addStatement(names[0], manifest.Digest, i.Statement)
			if err != nil {
				return nil, fmt.Errorf("statement about the image for %s: %w", i.Arch, err)
			}
			statements = append(statements, statement)
		}
		index, err := a.addJSON(mediaIndex, object{
			"schemaVersion": 2, "mediaType": mediaIndex, "manifests": append(manifests, statements...), "annotations": annotations,
		})
		digest = index.Digest
		return named(index, names), err
	})
	return digest, err
}

// create creates the archive, and lists in its index the manifests that add wrote and returned.
func create(path string, add func(*archive) ([]descriptor, error)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write images: %w", err)
		}
	}()
	file, err := os.CreateTemp(filepath.Dir(path), ".images-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
	}()
	a := &archive{tar: tar.NewWriter(file), have: map[string]bool{}}
	manifests, err := add(a)
	if err != nil {
		return err
	}
	if err := a.finish(manifests); err != nil {
		return err
	}
	if err := errors.Join(file.Chmod(0o644), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// add writes an image.
func (a *archive) add(i Image) (descriptor, error) {
	layers, ids := []descriptor{}, []string{}
	for _, l := range i.Layers {
		if err := a.addLayer(l); err != nil {
			return descriptor{}, err
		}
		layers = append(layers, descriptor{MediaType: l.media, Digest: l.digest, Size: l.size})
		ids = append(ids, l.diffID)
	}
	arch := i.Arch
	if arch == "" {
		arch = runtime.GOARCH
	}
	run := object{
		"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "User": i.User,
	}
	if len(i.Labels) > 0 {
		run["Labels"] = i.Labels
	}
	config := object{"architecture": arch, "os": "linux", "config": run, "rootfs": object{"type": "layers", "diff_ids": ids}}
	if !i.Created.IsZero() {
		config["created"] = i.Created.UTC().Format(time.RFC3339)
	}
	return a.addManifest(config, layers)
}

// addStatement writes a statement about the image with that digest, in the form in which build
// tools publish theirs: a manifest beside the image's that no runtime runs.
func (a *archive) addStatement(name, digest string, s *Statement) (descriptor, error) {
	kind, sum, _ := strings.Cut(digest, ":")
	text, err := a.addJSON(mediaStatement, object{
		"_type": "https://in-toto.io/Statement/v0.1", "predicateType": s.PredicateType, "predicate": s.Predicate,
		"subject": []object{{"name": name, "digest": map[string]string{kind: sum}}},
	})
	if err != nil {
		return descriptor{}, err
	}
	text.Annotations = map[string]string{"in-toto.io/predicate-type": s.PredicateType}
	config := object{
		"architecture": "unknown", "os": "unknown", "config": object{},
		"rootfs": object{"type": "layers", "diff_ids": []string{text.Digest}},
	}
	manifest, err := a.addManifest(config, []descriptor{text})
	manifest.Platform = &platform{Architecture: "unknown", OS: "unknown"}
	manifest.Annotations = map[string]string{"vnd.docker.reference.digest": digest, "vnd.docker.reference.type": "attestation-manifest"}
	return manifest, err
}

func (a *archive) addManifest(config object, layers []descriptor) (descriptor, error) {
	written, err := a.addJSON(mediaConfig, config)
	if err != nil {
		return descriptor{}, err
	}
	return a.addJSON(mediaManifest, object{"schemaVersion": 2, "mediaType": mediaManifest, "config": written, "layers": layers})
}

// named returns copies of a descriptor, one with each of the names.
func named(to descriptor, names []string) []descriptor {
	var all []descriptor
	for _, name := range names {
		d := to
		_, tag, _ := strings.Cut(filepath.Base(name), ":")
		d.Annotations = map[string]string{nameAnnotation: name, "org.opencontainers.image.ref.name": tag}
		all = append(all, d)
	}
	return all
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
	sum := digester{Hash: sha256.New()}
	if _, err := sum.Write(text); err != nil {
		return descriptor{}, err
	}
	d := descriptor{MediaType: media, Digest: sum.digest(), Size: sum.size}
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
	index, err := json.Marshal(object{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": manifests})
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
