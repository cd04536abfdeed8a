package reasons

import (
	"slices"
	"testing"
)

func TestCounterWords(t *testing.T) {
	hooks, reasons, err := Words()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(hooks, "sock") || !slices.Contains(reasons, "no-backend") || reasons[0] != "none" {
		t.Errorf("hooks %q, reasons %q", hooks, reasons)
	}
}
