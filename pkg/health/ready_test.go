package health

import (
	"errors"
	"net/http/httptest"
	"testing"
)

func TestReady(t *testing.T) {
	fine := Check{"maps-written", func() error { return nil }}
	broken := Check{"source-synced", func() error { return errors.New("pods are missing") }}
	tests := []struct {
		name, target string
		checks       []Check
		code         int
		body         string
	}{
		{"well", "/readyz", []Check{fine}, 200, "ok"},
		{"well, in words", "/readyz?verbose", []Check{fine, fine}, 200,
			"[+]maps-written ok\n[+]maps-written ok\nreadyz check passed\n"},
		{"ill", "/readyz", []Check{fine, broken}, 503,
			"[+]maps-written ok\n[-]source-synced failed: pods are missing\nreadyz check failed\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			answer := httptest.NewRecorder()
			Ready(tt.checks).ServeHTTP(answer, httptest.NewRequest("GET", tt.target, nil))
			if answer.Code != tt.code || answer.Body.String() != tt.body {
				t.Errorf("%d %q, want %d %q", answer.Code, answer.Body, tt.code, tt.body)
			}
		})
	}
}
