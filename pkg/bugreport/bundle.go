// Package bugreport writes what is known of a node into one file that may be handed to others: without secrets, of bounded
// size, in bounded time, and as much of it as there is.
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
	Name string // of the file; its folders are separated by slashes
	// Collect writes the file. What it has written before an error is kept.
	Collect func(ctx context.Context, to io.Writer) error
}

// Limits are what a bundle may take. What has no limit of its own ends with the context.
type Limits struct {
	Bytes   int           // of a part
	Total   int           // of all parts
	Time    time.Duration // of a part
	Overall time.Duration // of all parts
}

// DefaultLimits fit a large node, less most of its flows.
func DefaultLimits() Limits {
	return Limits{Bytes: 4 << 20, Total: 24 << 20, Time: 20 * time.Second, Overall: 90 * time.Second}
}

// Entry is what became of a part, as manifest.json lists it.
type Entry struct {
	Name      string `json:"name"`
	Bytes     int    `json:"bytes"`
	Truncated bool   `json:"truncated,omitempty"` // there was more
	Error     string `json:"error,omitempty"`
	// Milliseconds is how long it took.
	Milliseconds int64 `json:"milliseconds"`
}

// manifestName is the last file of a bundle.
const manifestName = "manifest.json"

// errFull is what a part is told that has written as much as it may.
var errFull = errors.New("the part is as long as it may be")

// Write writes the parts as a tar.gz, in a folder of its own, and returns what became of each. Everything goes through the
// redactor. A part that fails leaves a file with its name and ".error" added; the error of Write is about the bundle itself.
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

// bundle is the file that is being written.
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

// collect returns what a part writes. One that does not end in time is left behind with what it has written, since nobody
// knows in what state that is.
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

// bounded keeps what is written until there is no room.
type bounded struct {
	text bytes.Buffer
	left int
	full bool
}

// Write keeps what there is room for.
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

// fill has a part write. A bug in one does not lose the others.
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
