package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/congestion"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
)

// bbrWorks is what is noted where connections of pods may have BBR; anything else says why not.
const bbrWorks = "works"

// bbrFile is where "fairlead init" notes it: an agent may not make the namespaces that it takes to find out.
func bbrFile(cfg *config.Config) string { return filepath.Join(cfg.StateDir, "bbr") }

// tryBBR finds out whether connections of pods may have BBR, if any are to have it, and notes that. It returns what it has noted.
func tryBBR(cfg *config.Config) (found string, err error) {
	if cfg.BBR == "false" {
		if err := os.Remove(bbrFile(cfg)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return "", nil
	}
	found = bbrWorks
	way := congestion.Way{Netkit: cfg.PodDevice == string(cni.Netkit), Stack: cfg.HostRouting == "stack", Tunnel: cfg.Routing == fabric.VXLAN}
	if err := congestion.Probe(way); err != nil {
		found = err.Error()
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(bbrFile(cfg), []byte(found+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("note whether connections may have BBR: %w", err)
	}
	return found, nil
}

// lacksBBR returns why connections of pods do not have BBR although some are to have it; empty if nothing is in the way.
func lacksBBR(cfg *config.Config) string {
	noted, err := os.ReadFile(bbrFile(cfg))
	switch found := strings.TrimSpace(string(noted)); {
	case cfg.BBR == "false" || err == nil && found == bbrWorks:
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf(`it has not been tested: run "fairlead init --bbr=%s" with the agent's options, and restart the agent`, cfg.BBR)
	case err != nil:
		return err.Error()
	default:
		return found
	}
}

// wantsBBR reports whether connections of a pod have BBR that says so, or the contrary, or nothing.
func (a *agent) wantsBBR(asked model.Choice) bool {
	switch {
	case a.bbr == nil || a.bbr.Error != "":
		return false
	case a.cfg.BBR == "annotated":
		return asked == model.Yes
	}
	return asked != model.No
}

// bbrStatus returns whose connections have BBR; nil if nobody's are to.
func bbrStatus(cfg *config.Config) *observe.BBRStatus {
	if cfg.BBR == "false" {
		return nil
	}
	return &observe.BBRStatus{Annotated: cfg.BBR == "annotated", Error: lacksBBR(cfg)}
}

// replacedBy returns the congestion control that BBR takes the place of, as the node calls it; empty if it takes that of none.
func replacedBy(s *observe.BBRStatus) string {
	if s == nil || s.Error != "" {
		return ""
	}
	return congestionOf(procSys)
}
