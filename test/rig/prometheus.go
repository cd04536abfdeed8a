package rig

import (
	"os"
	"os/exec"
	"path/filepath"
)

// Prometheus returns the path of a program of Debian's package prometheus.
func Prometheus(t T, program string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatalf("find cache: %v", err)
	}
	path, err := exec.LookPath(filepath.Join(cache, "fairlead", "bin", program))
	if err != nil {
		Lacking(t, "prometheus", program+" of Debian's package prometheus must be fetched first: test/tools/prometheus.sh")
	}
	return path
}
