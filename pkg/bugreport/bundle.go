// Package bugreport writes what is known about a node to one file that can be handed to others:
// without secrets, in bounded size and time, and as complete as these allow.
package bugreport

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"time"
)

// Part is one file of a bundle.
type Part struct {
	Name string // file name, with slashes between directories
	// Collect writes the file. What it wrote before an error is kept.
	Collect func(ctx context.Context, to io.Writer) error
}

// Limits limit a bundle. Anything not limited here ends with the context.
type Limits struct {
	Bytes   int           // of a part
	Total   int           // of all parts
	Time    time.Duration // of a part
	Overall time.Duration // of all parts
}

// DefaultLimits fit a large node, except for most of its flows.
func DefaultLimits() Limits {
	return Limits{Bytes: 4 << 20, Total: 24 << 20, Time: 20 * time.Second, Overall: 90 * time.Second}
}

// Entry is the result of a part, as listed in manifest.json.
type Entry struct {
	Name      string `json:"name"`
	Bytes     int    `json:"bytes"`
	Truncated bool   `json:"truncated,omitempty"` // the part had more
	Error     string `json:"error,omitempty"`
	// Milliseconds is how long the part took.
	Milliseconds int64 `json:"milliseconds"`
}

// manifestName is the name of the last file of a bundle.
const manifestName = "manifest.json"

// errFull is the error of a write beyond a part's limit.
var errFull = errors.New("the part has reached its size limit")

// Write writes the parts as a tar.gz, in a directory named folder, and returns the result of each.
// Everything passes through the redactor. For a part that fails it adds a file with the error,
// named like the part with ".error" appended; the error that Write returns is about the bundle
// itself.
func Write(ctx context.Context, to io.Writer, folder string, parts []Part, redactor *Redactor, limits Limits) ([]Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.Overall)
	defer cancel()
	zipped := gzip.NewWriter(to)
	b := &bundle{tar: tar.NewWriter(zipped), folder: folder, made: time.Now()}
	var entries []Entry
	left := limits.Total
	for _, p := range parts {
		began := time.Now()
		text, err := collect(ctx, p, min(limits.Bytes, left), limits.Time)
		entry := Entry{Name: p.Name, Truncated: errors.Is(err, errFull), Milliseconds: time.Since(began).Milliseconds()}
		text = redactor.Clean(text, entry.Truncated)
		left -= len(text)
		entry.Bytes = len(text)
		if err != nil && !entry.Truncated {
			entry.Error = string(redactor.Clean([]byte(err.Error()), false))
			if err := b.add(p.Name+".error", []byte(entry.Error+"\n")); err != nil {
				return entries, err
			}
		}
		if len(text) > 0 || err == nil {
			if err := b.add(p.Name, text); err != nil {
				return entries, err
			}
		}
		entries = append(entries, entry)
	}
	list, err := json.MarshalIndent(entries, "", "  ")
	if err != nil {
		return entries, fmt.Errorf("list the parts: %w", err)
	}
	if err := b.add(manifestName, append(list, '\n')); err != nil {
		return entries, err
	}
	if err := errors.Join(b.tar.Close(), zipped.Close()); err != nil {
		return entries, fmt.Errorf("finish the bundle: %w", err)
	}
	return entries, nil
}

// bundle is the archive being written.
type bundle struct {
	tar    *tar.Writer
	folder string
	made   time.Time
}

func (b *bundle) add(name string, text []byte) error {
	header := tar.Header{Typeflag: tar.TypeReg, Name: path.Join(b.folder, name), Mode: 0o600, Size: int64(len(text)), ModTime: b.made}
	if err := b.tar.WriteHeader(&header); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	if _, err := b.tar.Write(text); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	return nil
}

// collect returns what a part writes. If the part does not end in time, what it has written is
// dropped, since it may still be writing.
func collect(ctx context.Context, p Part, most int, atMost time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		b := &bounded{left: most}
		err := b.fill(ctx, p)
		done <- result{b.text.Bytes(), err}
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("it took too long: %w", ctx.Err())
	}
}

// bounded keeps what is written up to a limit.
type bounded struct {
	text bytes.Buffer
	left int
	full bool
}

// Write implements io.Writer.
func (b *bounded) Write(text []byte) (int, error) {
	kept := text[:min(len(text), b.left)]
	b.left -= len(kept)
	b.text.Write(kept)
	if len(kept) < len(text) {
		b.full = true
		return len(kept), errFull
	}
	return len(kept), nil
}

// fill runs a part. A panic in it does not lose the other parts.
func (b *bounded) fill(ctx context.Context, p Part) (err error) {
	defer func() {
		if bug := recover(); bug != nil {
			err = fmt.Errorf("a bug: %v", bug)
		}
		if b.full {
			err = errFull
		}
	}()
	return p.Collect(ctx, b)
}
