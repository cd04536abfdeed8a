package programs

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	fairleadmaps "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// mostInstructions is the limit of instructions that the verifier may process for one program: a
// fifth of the kernel's limit.
const mostInstructions = 200_000

// configs returns all combinations of the extremes of every field of the configuration: the
// verifier skips code that a constant rules out, so it may accept a program with one configuration
// and reject it with another. A short run has each extreme once, since an emulated machine takes
// seconds for each configuration.
func configs() []bpf.MapsPacketConfig {
	if testing.Short() {
		return []bpf.MapsPacketConfig{
			{SnatFirst: 1024, SnatLast: 1024, TickShift: 0},
			{
				SnatFirst: 1, SnatLast: 65535, TickShift: 31, ExternalClusterip: 1,
				HashKey0: ^uint64(0), HashKey1: ^uint64(0), HashKey2: ^uint64(0), HashKey3: ^uint64(0), HashKey4: ^uint64(0),
			},
			{SnatFirst: 1, SnatLast: 65535, TickShift: 10, ExternalClusterip: 1, Growing: 1, Bypass: 1, Masquerade: 1, Own: 1},
		}
	}
	var list []bpf.MapsPacketConfig
	for _, ports := range [][2]uint16{{1024, 1024}, {1, 65535}} {
		for _, shift := range []uint32{0, 10, 31} {
			for _, external := range []uint16{0, 1} {
				list = append(list, bpf.MapsPacketConfig{SnatFirst: ports[0], SnatLast: ports[1], TickShift: shift, ExternalClusterip: external})
			}
		}
		// The other settings do not affect how a program looks into one more map.
		list = append(list, bpf.MapsPacketConfig{SnatFirst: ports[0], SnatLast: ports[1], TickShift: 10, ExternalClusterip: 1, Growing: 1, Bypass: 1, Masquerade: 1, Own: 1},
			bpf.MapsPacketConfig{SnatFirst: ports[0], SnatLast: ports[1], TickShift: 10, Bypass: 1},
			bpf.MapsPacketConfig{SnatFirst: ports[0], SnatLast: ports[1], TickShift: 10, Masquerade: 1},
			bpf.MapsPacketConfig{SnatFirst: ports[0], SnatLast: ports[1], TickShift: 10, Own: 1})
	}
	return list
}

// The packet programs load with any configuration, well within the verifier's limit.
func TestPacketPrograms(t *testing.T) {
	rig.Root(t)
	m, err := fairleadmaps.Create(fairleadmaps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	most := map[string]uint32{}
	for _, config := range configs() {
		for _, read := range []func() (*ebpf.CollectionSpec, error){bpf.LoadTc, bpf.LoadXdp, bpf.LoadPod} {
			for name, walked := range walk(t, read, config, m) {
				most[name] = max(most[name], walked)
			}
		}
	}
	for name, walked := range most {
		t.Logf("%s: the verifier processed %d instructions", name, walked)
		if walked > mostInstructions {
			t.Errorf("%s: the verifier processed %d instructions, want at most %d", name, walked, mostInstructions)
		}
	}
}

// walk loads an object and returns the number of instructions that the verifier processed for each
// program.
func walk(t *testing.T, read func() (*ebpf.CollectionSpec, error), config bpf.MapsPacketConfig, m *fairleadmaps.Maps) map[string]uint32 {
	t.Helper()
	spec, err := read()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["cfg"].Set(config); err != nil {
		t.Fatal(err)
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: m.Replacements(spec)})
	if err != nil {
		var refused *ebpf.VerifierError
		if errors.As(err, &refused) {
			t.Logf("%+v", refused)
		}
		t.Fatalf("load with %+v: %v", config, err)
	}
	defer loaded.Close()
	walked := map[string]uint32{}
	for name, program := range loaded.Programs {
		info, err := program.Info()
		if err != nil {
			t.Fatal(err)
		}
		count, ok := info.VerifiedInstructions()
		if !ok {
			t.Errorf("the kernel does not say how many instructions of %s it processed", name)
		}
		walked[name] = count
	}
	return walked
}
