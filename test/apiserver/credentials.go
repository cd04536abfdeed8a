package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
)

// writeCredentials writes the administrator's token and the service account key. The server makes
// its own certificate.
func (s *Server) writeCredentials() error {
	users := token + ",admin,admin,system:masters\n"
	if err := os.WriteFile(s.path("tokens.csv"), []byte(users), 0o600); err != nil {
		return fmt.Errorf("write token: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make service account key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode service account key: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	if err := os.WriteFile(s.path("account.key"), text, 0o600); err != nil {
		return fmt.Errorf("write service account key: %w", err)
	}
	return nil
}
