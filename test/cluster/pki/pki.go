// Package pki makes the certificates and keys with which the parts of a cluster authenticate each
// other, and kubeconfig files that refer to them.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// lifetime is longer than any cluster runs.
const lifetime = 365 * 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Subject is the holder of a certificate.
type Subject struct {
	Name   string // the user name in Kubernetes
	Groups []string
	DNS    []string // names of a server
	Addrs  []netip.Addr
}

// NewAuthority makes an authority and writes its certificate and key to NAME.crt and NAME.key in
// dir.
func NewAuthority(dir, name string) (*Authority, error) {
	key, err := newKey(filepath.Join(dir, name+".key"))
	if err != nil {
		return nil, err
	}
	template := certificate(Subject{Name: name})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = nil
	a := &Authority{dir: dir, name: name, cert: template, key: key}
	der, err := a.sign(name, template, &key.PublicKey)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("parse certificate of %s: %w", name, err)
	}
	return a, nil
}

// Issue makes a key and a certificate that a client or server can use, and writes them to FILE.key
// and FILE.crt.
func (a *Authority) Issue(file string, s Subject) error {
	key, err := newKey(filepath.Join(a.dir, file+".key"))
	if err != nil {
		return err
	}
	_, err = a.sign(file, certificate(s), &key.PublicKey)
	return err
}

// NewSigningKey makes a key for signing tokens, and writes both halves to FILE.key and FILE.pub.
func NewSigningKey(dir, file string) error {
	key, err := newKey(filepath.Join(dir, file+".key"))
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("encode key %s: %w", file, err)
	}
	return writePEM(filepath.Join(dir, file+".pub"), "PUBLIC KEY", der)
}

// WriteKubeconfig writes a kubeconfig that uses FILE.crt and FILE.key of the authority.
func (a *Authority) WriteKubeconfig(path, server, file string) error {
	inDir := func(name string) string { return filepath.Join(a.dir, name) }
	type object = map[string]any
	text, err := json.MarshalIndent(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "cluster",
		"clusters": []object{{"name": "cluster", "cluster": object{"server": server, "certificate-authority": inDir(a.name + ".crt")}}},
		"users":    []object{{"name": file, "user": object{"client-certificate": inDir(file + ".crt"), "client-key": inDir(file + ".key")}}},
		"contexts": []object{{"name": "cluster", "context": object{"cluster": "cluster", "user": file}}},
	}, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", file, err)
	}
	return nil
}

func (a *Authority) sign(file string, template *x509.Certificate, key *ecdsa.PublicKey) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate %s: %w", file, err)
	}
	return der, writePEM(filepath.Join(a.dir, file+".crt"), "CERTIFICATE", der)
}

func certificate(s Subject) *x509.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: s.Name, Organization: s.Groups},
		NotBefore:    time.Now().Add(-time.Hour), // clocks may be set back
		NotAfter:     time.Now().Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:     s.DNS,
	}
	for _, addr := range s.Addrs {
		template.IPAddresses = append(template.IPAddresses, net.IP(addr.AsSlice()))
	}
	return template
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return key, writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
