package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

func TestIssue(t *testing.T) {
	dir := t.TempDir()
	ca, err := NewAuthority(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthority(dir, "other")
	if err != nil {
		t.Fatal(err)
	}
	subject := Subject{Name: "server", Groups: []string{"servers"}, DNS: []string{"kubernetes"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}}
	if err := ca.Issue("server", subject); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"))
	if err != nil {
		t.Fatal(err)
	}
	if s := pair.Leaf.Subject; s.CommonName != "server" || len(s.Organization) != 1 || s.Organization[0] != "servers" {
		t.Errorf("subject %v", s)
	}
	for name, valid := range map[string]bool{"kubernetes": true, "10.0.0.1": true, "fd00::1": true, "10.0.0.2": false} {
		for _, a := range []*Authority{ca, other} {
			roots := x509.NewCertPool()
			roots.AddCert(a.cert)
			_, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots})
			if (err == nil) != (valid && a == ca) {
				t.Errorf("as %s, signed by %s: %v", name, a.name, err)
			}
		}
	}
}

func TestWriteKubeconfig(t *testing.T) {
	dir := t.TempDir()
	ca, err := NewAuthority(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	if err := ca.WriteKubeconfig(path, "https://[fd00::1]:6443", "admin"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var have struct {
		Clusters []struct {
			Cluster struct{ Server string }
		}
		Users []struct{ User map[string]string }
	}
	if err := json.Unmarshal(text, &have); err != nil {
		t.Fatal(err)
	}
	if have.Clusters[0].Cluster.Server != "https://[fd00::1]:6443" || have.Users[0].User["client-key"] != filepath.Join(dir, "admin.key") {
		t.Errorf("%s", text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestNewSigningKey(t *testing.T) {
	dir := t.TempDir()
	if err := NewSigningKey(dir, "accounts"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"accounts.key", "accounts.pub"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if err := NewSigningKey(filepath.Join(dir, "missing"), "accounts"); err == nil {
		t.Error("NewSigningKey succeeds in a missing directory")
	}
}
