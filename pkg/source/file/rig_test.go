package file

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/model"
)

// rig is a Source, its Store and the directory that it reads.
type rig struct {
	*testing.T
	dir    string
	store  *model.Store
	source *Source
	scans  chan struct{} // receives a value after each scan
}

// newRig returns a rig whose Source reads files at once, however young they are.
func newRig(t *testing.T, dir string) *rig {
	t.Helper()
	store := model.NewStore("n1")
	r := &rig{T: t, dir: dir, store: store, scans: make(chan struct{}, 1)}
	r.source = New(dir, store, slog.New(slog.NewTextHandler(t.Output(), nil)))
	r.source.minAge = 0
	r.source.scanned = func() {
		select {
		case r.scans <- struct{}{}:
		default:
		}
	}
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) write(name, text string) {
	r.Helper()
	if err := os.WriteFile(r.path(name), []byte(text), 0o644); err != nil {
		r.Fatal(err)
	}
}

// replace renames a new file over the old one.
func (r *rig) replace(name, text string) {
	r.Helper()
	r.write("."+name+".new", text)
	r.must(os.Rename(r.path("."+name+".new"), r.path(name)))
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// scan makes one scan, as Run does.
func (r *rig) scan() {
	r.Helper()
	r.must(os.MkdirAll(filepath.Dir(r.dir), 0o755))
	if wait := r.source.scan(true); wait != 0 {
		r.Fatalf("the scan wants to wait %v", wait)
	}
	r.source.publish(true)
}

// services lists the Services in the store as "name=ClusterIP".
func (r *rig) services() string {
	var list []string
	for _, key := range r.store.Keys() {
		if key.Kind != model.KindService {
			continue
		}
		service, _ := r.store.Service(key.Name)
		addr := "none"
		if len(service.ClusterIPs) > 0 {
			addr = service.ClusterIPs[0].String()
		}
		list = append(list, service.Name.Name+"="+addr)
	}
	return strings.Join(list, " ")
}

// errors lists the errors as "file:line".
func (r *rig) errors() string {
	var list []string
	for _, e := range r.source.Status().Errors {
		list = append(list, fmt.Sprintf("%s:%d", filepath.Base(e.File), e.Line))
	}
	return strings.Join(list, " ")
}

func (r *rig) synced() bool {
	select {
	case <-r.store.Synced():
		return true
	default:
		return false
	}
}

func (r *rig) want(services, errors string) {
	r.Helper()
	if got := r.services(); got != services {
		r.Errorf("got services %q, want %q", got, services)
	}
	if got := r.errors(); got != errors {
		r.Errorf("got errors %q, want %q: %v", got, errors, r.source.Status().Errors)
	}
}

// start runs the Source until the test ends.
func (r *rig) start() {
	r.source.minAge = minAge
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.source.Run(ctx) }()
	r.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				r.Errorf("Run returned %v", err)
			}
		case <-time.After(20 * time.Second):
			r.Error("Run does not return")
		}
	})
}

// eventually waits for a scan after which the Services and errors are as wanted.
func (r *rig) eventually(services, errors string) {
	r.Helper()
	deadline := time.After(20 * time.Second)
	for r.services() != services || r.errors() != errors {
		select {
		case <-r.scans:
		case <-deadline:
			r.want(services, errors)
			r.FailNow()
		}
	}
}
