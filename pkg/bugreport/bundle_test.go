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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// unpack returns the files of a bundle by name.
func unpack(t *testing.T, bundle io.Reader) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(bundle)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := files[header.Name]; twice || header.Mode != 0o600 || header.Typeflag != tar.TypeReg {
			t.Errorf("%+v", header)
		}
		files[header.Name] = string(text)
	}
}

func says(text string) func(context.Context, io.Writer) error {
	return func(_ context.Context, to io.Writer) error { _, err := io.WriteString(to, text); return err }
}

// A part that fails, in whatever way, is named in the manifest and does not lose the other parts.
func TestParts(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	parts := []Part{
		{"first.txt", says("one\n")},
		{"empty.txt", says("")},
		{"failed.txt", func(_ context.Context, to io.Writer) error {
			fmt.Fprintln(to, "half of it")
			return errors.New("no token: S3CRETknown")
		}},
		{"nothing.txt", func(context.Context, io.Writer) error { return errors.New("not there") }},
		{"bug.txt", func(_ context.Context, to io.Writer) error {
			fmt.Fprintln(to, "before")
			return []error{}[len(to.(*bounded).text.Bytes())]
		}},
		{"slow.txt", func(_ context.Context, to io.Writer) error {
			<-release // ignores its context
			return nil
		}},
		{"patient.txt", func(ctx context.Context, to io.Writer) error { <-ctx.Done(); return ctx.Err() }},
		{"long.txt", func(_ context.Context, to io.Writer) error {
			for {
				if _, err := io.WriteString(to, "0123456789abcde\n"); err != nil {
					return fmt.Errorf("write: %w", err)
				}
			}
		}},
		{"careless.txt", func(_ context.Context, to io.Writer) error {
			for range 1000 {
				_, _ = io.WriteString(to, "0123456789abcde\n")
			}
			return nil
		}},
		{"dir/last.txt", says("eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrS3CRET.c2ln\n")},
	}
	var out bytes.Buffer
	limits := Limits{Bytes: 1000, Total: 1 << 20, Time: 50 * time.Millisecond, Overall: time.Minute}
	entries, err := Write(t.Context(), &out, "folder", parts, NewRedactor([]string{"S3CRETknown"}), limits)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, &out)
	full := strings.Repeat("0123456789abcde\n", 62)
	const late = "it took too long: context deadline exceeded"
	want := map[string]string{
		"folder/first.txt": "one\n", "folder/empty.txt": "", "folder/failed.txt": "half of it\n", "folder/failed.txt.error": "no token: [redacted]\n",
		"folder/nothing.txt.error": "not there\n", "folder/bug.txt": "before\n", "folder/bug.txt.error": "a bug: runtime error: index out of range [7] with length 0\n",
		"folder/slow.txt.error": late + "\n", "folder/long.txt": full, "folder/careless.txt": full, "folder/dir/last.txt": "[redacted]\n",
	}
	// This part ends by itself when its time is over; either message may come first.
	if text := files["folder/patient.txt.error"]; text != late+"\n" && text != "context deadline exceeded\n" {
		t.Errorf("the error of a part that waits is %q", text)
	}
	var manifest []Entry
	if err := json.Unmarshal([]byte(files["folder/manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	delete(files, "folder/patient.txt.error")
	delete(files, "folder/manifest.json")
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(entries, manifest); diff != "" || len(manifest) != len(parts) {
		t.Errorf("the manifest: %s", diff)
	}
	for i, e := range manifest {
		if cut := e.Name == "long.txt" || e.Name == "careless.txt"; e.Name != parts[i].Name || e.Truncated != cut || e.Bytes != len(files["folder/"+e.Name]) {
			t.Errorf("%+v", e)
		}
	}
}

// All parts together respect the total limit, and if the context is canceled, the manifest names
// what is missing.
func TestTotal(t *testing.T) {
	var parts []Part
	for i := range 10 {
		parts = append(parts, Part{fmt.Sprint(i), says(strings.Repeat("abcdefg\n", 100))})
	}
	var out bytes.Buffer
	entries, err := Write(t.Context(), &out, "f", parts, NewRedactor(nil), Limits{Bytes: 1000, Total: 2000, Time: time.Minute, Overall: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for i, e := range entries {
		total += e.Bytes
		if e.Truncated != (i >= 2) {
			t.Errorf("%+v", e)
		}
	}
	if total != 2000 {
		t.Errorf("%d bytes in total, want 2000", total)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	parts = []Part{{"x", func(ctx context.Context, _ io.Writer) error { <-ctx.Done(); return ctx.Err() }}}
	entries, err = Write(ctx, io.Discard, "f", parts, NewRedactor(nil), DefaultLimits())
	if err != nil || len(entries) != 1 || entries[0].Error == "" {
		t.Errorf("%+v, %v", entries, err)
	}
}

// full is a writer with room for a number of bytes.
type full struct{ left int }

// Write fails when there is no room left.
func (f *full) Write(text []byte) (int, error) {
	if f.left -= len(text); f.left < 0 {
		return 0, errors.New("no space left")
	}
	return len(text), nil
}

// A write error is returned, wherever it occurs.
func TestNoSpace(t *testing.T) {
	noise := make([]byte, 1<<12)
	for i := range noise {
		noise[i] = 'a' + byte(i*i*31%23)
	}
	parts := []Part{{"a", says(string(noise))}, {"b", says("b")}}
	for room := range 40 {
		if _, err := Write(t.Context(), &full{room}, "f", parts, NewRedactor(nil), DefaultLimits()); err == nil {
			t.Fatalf("Write succeeded with room for %d bytes", room)
		}
	}
}
