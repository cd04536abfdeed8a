package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bugreport"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

// bundleFiles returns the files in a bundle, by their names in its one folder.
func bundleFiles(t *testing.T, bundle []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(bundle))
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
		_, name, ok := strings.Cut(header.Name, "/")
		if !ok || path.Clean(header.Name) != header.Name || !filepath.IsLocal(header.Name) {
			t.Errorf("a file is called %q", header.Name)
		}
		files[name] = string(text)
	}
}

const plantedToken = "eyJhbGciOiJSUzI1NiIsImtpZCI6Ik.eyJpc3MiOiJrdWJlcm5ldGVzL3.c2lnbmF0dXJlc2lnbmF0dXJl"

// suspicious is an agent's status with addresses, and with secrets where users have put them.
func suspicious() observe.Status {
	return observe.Status{
		Version: "v1", Node: "worker-17", Degraded: []string{},
		Problems: []model.ObjectProblem{
			{Object: "shop/web", Problem: model.Problem{Reason: "BadAnnotation", Message: "token: " + plantedToken + " of 10.96.0.9 and https://me:PLANTED-pass@example.com/"}},
			{Object: "shop/db", Problem: model.Problem{Reason: "x", Message: "-----BEGIN PRIVATE KEY-----\nPLANTED-key\n-----END PRIVATE KEY-----"}},
			{Object: "shop/env", Problem: model.Problem{Reason: "x", Message: "the seed is PLANTED-seed-0123456789; DB_PASSWORD is PLANTED-database"}},
			{Object: "shop/tty", Problem: model.Problem{Reason: "x", Message: "\x1b[2J\u009b1m"}},
		},
	}
}

// bugreportOf runs the command with planted secrets in its environment.
func bugreportOf(t *testing.T, args ...string) (result, []byte) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	environ := []string{"DB_PASSWORD=PLANTED-database", "FAIRLEAD_HASH_SEED=PLANTED-seed-0123456789", "HOME=/root", "GITHUB_TOKEN=PLANTED-forge"}
	code := execute(t.Context(), &env{Stdout: &stdout, Stderr: &stderr, Environ: environ, Args: append([]string{"bugreport"}, args...)})
	return result{code, stdout.String(), stderr.String()}, stdout.Bytes()
}

// TestBugreport checks that no secret is in the bundle, wherever it came from, and that the useful
// content is there.
func TestBugreport(t *testing.T) {
	dir, _ := startAgent(t, suspicious)
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "fairlead_degraded 0\nfairlead_build_info{token=\"PLANTED-label\"} 1\n")
	}))
	t.Cleanup(metrics.Close)
	for _, anonymize := range []bool{false, true} {
		args := []string{"--state-dir", dir, "--bpffs", t.TempDir(), "--file=-"}
		if anonymize {
			args = append(args, "--anonymize")
		}
		got, bundle := bugreportOf(t, args...)
		if got.code != exitOK || got.stderr != "" {
			t.Fatalf("exit code %d: %s", got.code, got.stderr)
		}
		files := bundleFiles(t, bundle)
		for name, text := range files {
			if i := strings.Index(text, "PLANTED"); i >= 0 || strings.Contains(text, "eyJhbGci") || strings.ContainsAny(text, "\x1b\u009b") {
				t.Errorf("%s has a secret: ...%.60q", name, text[max(i-60, 0):])
			}
			if anonymize && (strings.Contains(text, "10.96.0.9") || strings.Contains(text, "worker-17")) {
				t.Errorf("%s has an address or the node's name: %q", name, text)
			}
		}
		for name, want := range map[string]string{
			"status.txt": "shop/web: BadAnnotation: token: [redacted]", "status.json": `"object": "shop/db"`, "config.json": `"name": "source"`,
			"preflight.txt": " checks: ", "version.json": `"go":`, "verify.txt": "", "sockmap.txt": "CLIENT ", "agent/goroutines.txt": "goroutine ", "pins.txt": "",
			"state-dir.txt": "agent.sock", "machine/sysctls.txt": "kernel/osrelease = ", "machine/devices.txt": "1: lo ", "machine/routes.txt": "",
			"maps/svcs.txt.error": "no fairlead maps under", "maps/flows.txt.error": "no fairlead maps under", "agent/metrics.txt.error": "",
		} {
			if text, ok := files[name]; !ok && !strings.HasPrefix(name, "pins") || !strings.Contains(text, want) {
				t.Errorf("%s: %q, want %q", name, text, want)
			}
		}
		if !strings.Contains(files["status.txt"], "10.") || anonymize != strings.Contains(files["status.txt"], "this-node") {
			t.Errorf("anonymous: %v: %s", anonymize, files["status.txt"])
		}
		var manifest []bugreport.Entry
		if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil || len(manifest) < 30 {
			t.Errorf("the manifest: %v, %+v", err, manifest)
		}
	}
	address := strings.TrimPrefix(metrics.URL, "http://")
	got, bundle := bugreportOf(t, append(nowhere(t), "--metrics-address", address, "--node-name=n1", "--source=/x", "--file=-")...)
	files := bundleFiles(t, bundle)
	if want := "fairlead_degraded 0\nfairlead_build_info{token=\"[redacted]\"} 1\n"; got.code != exitOK || files["agent/metrics.txt"] != want {
		t.Errorf("metrics: %q", files["agent/metrics.txt"])
	}
	// The flags apply to all commands. Without an agent they are the options.
	var view configView
	if err := json.Unmarshal([]byte(files["config.json"]), &view); err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, o := range view.Options {
		have[o.Name] = o.Value
	}
	if have["metrics-address"] != address || have["node-name"] != "n1" || have["hash-seed"] != "[redacted]" || view.Of != "here" {
		t.Errorf("options of %s: %v", view.Of, have)
	}
	if text := files["status.txt.error"]; !strings.Contains(text, "exit code 4") {
		t.Errorf("without an agent: %q", text)
	}
}

// TestBugreportOfAccelerateOnly checks that in accelerate-only mode, the bundle does not list parts
// as missing that there cannot be, whether an option names the mode or the command finds it.
func TestBugreportOfAccelerateOnly(t *testing.T) {
	found := nowhere(t)
	if err := os.MkdirAll(sockmap.Dir(found[1]), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{found, append(nowhere(t), "--mode=accelerate-only")} {
		got, bundle := bugreportOf(t, append(args, "--node-name=n1", "--file=-")...)
		files := bundleFiles(t, bundle)
		if args[1] == found[1] && !strings.Contains(files["pins.txt"], "sockmap") {
			t.Errorf("%v: pins: %q", args, files["pins.txt"])
		}
		if got.code != exitOK || !strings.HasPrefix(files["sockmap.txt"], "CLIENT ") || !strings.Contains(files["status.txt.error"], "exit code 4") {
			t.Errorf("%v: %+v, %q", args, got.code, files)
		}
		for name := range files {
			for _, of := range []string{"maps/", "drops.", "verify.", "services.", "addresses-of-pods.", "rates."} {
				if strings.HasPrefix(name, of) {
					t.Errorf("%v: there is %s", args, name)
				}
			}
		}
	}
}

// TestBugreportOfSockmap checks that links.txt has the programs through which connections bypass TCP.
func TestBugreportOfSockmap(t *testing.T) {
	rig.MapIterators(t)
	bpffs := rig.BPFFS(t)
	s, err := sockmap.Open(sockmap.Config{BPFFS: bpffs, Limits: sockmap.DefaultLimits(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, bundle := bugreportOf(t, "--bpffs", bpffs, "--state-dir", t.TempDir(), "--node-name=n1", "--file=-")
	files := bundleFiles(t, bundle)
	for _, name := range []string{"sockmap_read", "sockmap_forget", "sockmap_admit", "sockmap_sweep", "sockmap_message"} {
		if text := files["links.txt"]; got.code != exitOK || !strings.Contains(text, "/"+name+": attached true, program ") || files["links.txt.error"] != "" {
			t.Errorf("no %s: %q, %q", name, text, files["links.txt.error"])
		}
	}
}

// TestBugreportFile checks that a bundle is written completely or not at all, only its owner may
// read it, and no other file is overwritten.
func TestBugreportFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.tar.gz")
	args := append(nowhere(t), "--node-name=n1", "--file", file)
	if got, _ := bugreportOf(t, args...); got.code != exitOK || !strings.Contains(got.stdout, file+" is written. Look at it") || !strings.Contains(got.stdout, "incomplete: maps/svcs.txt: ") {
		t.Fatalf("%+v", got)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := bundleFiles(t, text)["manifest.json"]; !ok {
		t.Error("it has no manifest")
	}
	got, _ := bugreportOf(t, args...)
	after, err := os.ReadFile(file)
	if err != nil || got.code != exitError || !strings.Contains(got.stderr, "file exists") || !bytes.Equal(text, after) {
		t.Errorf("a second bundle of that name: %+v, %v", got, err)
	}
	if got, _ := bugreportOf(t, append(nowhere(t), "--file", filepath.Join(dir, "none", "x"))...); got.code != exitError {
		t.Errorf("a directory that is not there: %+v", got)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	t.Chdir(dir)
	got, _ = bugreportOf(t, append(nowhere(t), "--node-name=n1", "-o", "json")...)
	var done written
	if err := json.Unmarshal([]byte(got.stdout), &done); err != nil || !strings.HasPrefix(done.File, "fairlead-n1-2") {
		t.Fatalf("%v: %+v", err, got)
	}
	if _, err := os.Stat(filepath.Join(dir, done.File)); err != nil {
		t.Error(err)
	}
	names := []string{}
	for _, p := range done.Parts {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	if diff := cmp.Diff(slices.Compact(slices.Clone(names)), names); diff != "" {
		t.Errorf("two parts have one name:\n%s", diff)
	}
}
