package podnetwork

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
	"fairlead.io/fairlead/pkg/sysctl"
)

// bbrWorks is the result that is recorded if connections of pods can use BBR. Any other result says
// why not.
const bbrWorks = "works"

// BBRFile is where "fairlead init" records the result of its test, because an agent may lack the
// privileges for the test's network namespaces. Its first line says which way was tested, because
// an agent with other options may send packets another way, where the result does not hold.
func BBRFile(cfg *config.Config) string { return filepath.Join(cfg.StateDir, "bbr") }

// bbrWay returns the way that packets of new pods take with these options.
func bbrWay(cfg *config.Config) congestion.Way {
	return congestion.Way{Netkit: Kind(cfg) == cni.Netkit, Stack: cfg.HostRouting == "stack", Tunnel: cfg.Routing == fabric.VXLAN}
}

// TryBBR tests whether connections of pods can use BBR, if the options want that for any, and
// records and returns the result.
func TryBBR(cfg *config.Config) (found string, err error) {
	if cfg.BBR == "false" {
		if err := os.Remove(BBRFile(cfg)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return "", nil
	}
	found = bbrWorks
	way := bbrWay(cfg)
	if err := congestion.Probe(way); err != nil {
		found = err.Error()
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(BBRFile(cfg), []byte(way.String()+"\n"+found+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("record whether connections can use BBR: %w", err)
	}
	return found, nil
}

// LacksBBR returns why connections of pods do not use BBR although the options want that for some,
// or "" if nothing prevents it.
func LacksBBR(cfg *config.Config) string {
	if cfg.BBR == "false" {
		return ""
	}
	noted, err := os.ReadFile(BBRFile(cfg))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err.Error()
	}
	tried, found, _ := strings.Cut(strings.TrimSpace(string(noted)), "\n")
	switch way := bbrWay(cfg).String(); {
	case tried != way || found == "":
		return fmt.Sprintf(`it has not been tested with %s: run "fairlead init --bbr=%s" with the agent's options, and restart the agent`, way, cfg.BBR)
	case found == bbrWorks:
		return ""
	}
	return found
}

// wantsBBR reports whether new connections of a pod use BBR, given what its annotation asks for.
func (n *Network) wantsBBR(asked model.Choice) bool {
	switch {
	case n.BBR == nil || n.BBR.Error != "":
		return false
	case n.Options.BBR == "annotated":
		return asked == model.Yes
	}
	return asked != model.No
}

// BBRStatus returns whose connections use BBR, or nil if the options want that for none.
func BBRStatus(cfg *config.Config) *congestion.Status {
	if cfg.BBR == "false" {
		return nil
	}
	return &congestion.Status{Annotated: cfg.BBR == "annotated", Error: LacksBBR(cfg)}
}

// ReplacedCongestion returns the node's default congestion control, which BBR replaces for pods, or "" if
// it does not.
func ReplacedCongestion(s *congestion.Status) string {
	if s == nil || s.Error != "" {
		return ""
	}
	return sysctl.CongestionControl(sysctl.Root)
}
