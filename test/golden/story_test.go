package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
)

// story is one file of testdata. Its comment explains it and may have a line of options, such as
// "facts: algorithm=maglev". Manifests of the archive that are in no step's directory belong to
// every step.
type story struct {
	name, path string
	archive    *txtar.Archive
	facts      lb.Facts
	remembers  bool // the result of a step depends on the steps before it
	steps      []step
}

// step is the whole content of the directory at one time, and the dump expected then.
type step struct {
	name      string
	manifests map[string][]byte
	want      string
}

func read(path string) (*story, error) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		return nil, fmt.Errorf("read story: %w", err)
	}
	s := &story{
		name:    strings.TrimSuffix(filepath.Base(path), ".txtar"),
		path:    path,
		archive: archive,
		facts:   lb.Facts{ExternalIPs: lb.ExternalIPsAll},
	}
	for line := range strings.Lines(string(archive.Comment)) {
		options, ok := strings.CutPrefix(strings.TrimSpace(line), "facts: ")
		if !ok {
			continue
		}
		for _, option := range strings.Fields(options) {
			if err := s.setOption(option); err != nil {
				return nil, fmt.Errorf("read story %s: %w", path, err)
			}
		}
	}
	common := map[string][]byte{}
	for _, f := range archive.Files {
		name, rest, ok := strings.Cut(f.Name, "/")
		if !ok {
			common[f.Name] = f.Data
			continue
		}
		if len(s.steps) == 0 || s.steps[len(s.steps)-1].name != name {
			s.steps = append(s.steps, step{name: name, manifests: map[string][]byte{}})
		}
		last := &s.steps[len(s.steps)-1]
		if rest == "dump" {
			last.want = string(f.Data)
		} else {
			last.manifests[rest] = f.Data
		}
	}
	for i := range s.steps {
		for name, data := range common {
			if _, ok := s.steps[i].manifests[name]; ok {
				return nil, fmt.Errorf("read story %s: step %s has %s, which every step has", path, s.steps[i].name, name)
			}
			s.steps[i].manifests[name] = data
		}
	}
	return s, nil
}

func (s *story) setOption(option string) (err error) {
	switch name, value, _ := strings.Cut(option, "="); name {
	case "vip-ping":
		s.facts.VIPPing = value == "true"
	case "node-external-ips":
		s.facts.NodeExternalIPs = value == "true"
	case "node-ports":
		s.facts.NodePorts, err = model.ParsePortRange(value)
	case "external-ips":
		s.facts.ExternalIPs, err = lb.ParseExternalIPs(value)
	case "dsr":
		s.facts.AcceptDirect = true
		s.facts.Direct, err = lb.ParseDirect(value)
	case "algorithm":
		s.facts.Algorithm, err = lb.ParseAlgorithm(value)
	case "remembers":
		s.remembers = true
	default:
		err = fmt.Errorf("unknown fact %q", name)
	}
	return err
}

// record puts a dump behind the manifests of its step.
func (s *story) record(i int, got string) {
	s.steps[i].want = got
	name := s.steps[i].name + "/dump"
	at := slices.IndexFunc(s.archive.Files, func(f txtar.File) bool { return f.Name == name })
	if at < 0 {
		at = len(s.archive.Files)
		for j, f := range s.archive.Files {
			if strings.HasPrefix(f.Name, s.steps[i].name+"/") {
				at = j + 1
			}
		}
		s.archive.Files = slices.Insert(s.archive.Files, at, txtar.File{Name: name})
	}
	s.archive.Files[at].Data = []byte(got)
}

func (s *story) write() error {
	if err := os.WriteFile(s.path, txtar.Format(s.archive), 0o644); err != nil {
		return fmt.Errorf("write story: %w", err)
	}
	return nil
}
