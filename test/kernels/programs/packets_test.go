package programs

import (
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	fairleadmaps "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// mostInstructions is the limit of instructions that the verifier may process for one program: a
// fifth of the kernel's limit.
const mostInstructions = 200_000

// configs returns the extremes of every field of the configuration, and all combinations of settings
// that are on or off: the verifier skips code that a constant rules out, so it may accept a program
// with one configuration and reject it with another. A short list has each extreme once, and
// everything without rates too, since an emulated machine takes many seconds for each configuration.
func configs(short bool) []bpf.MapsPacketConfig {
	off := bpf.MapsPacketConfig{SnatFirst: 1024, SnatLast: 1024, TickShift: 0}
	on := bpf.MapsPacketConfig{
		SnatFirst: 1, SnatLast: 65535, TickShift: 31, ExternalClusterip: 1, HostFlows: 1, Growing: 1, Masquerade: 1, Bypass: 1, DsrAccept: 1, TunnelPort: 8472, AnySourcePort: 1, Policies: 1, Checked: 1<<48 - 1,
		HashKey0: ^uint64(0), HashKey1: ^uint64(0), HashKey2: ^uint64(0), HashKey3: ^uint64(0), HashKey4: ^uint64(0),
	}
	rated := on
	rated.Pacer = math.MaxUint32
	if short {
		return []bpf.MapsPacketConfig{off, on, rated}
	}
	narrow := rated
	narrow.SnatFirst, narrow.SnatLast = 1024, 1024
	list := []bpf.MapsPacketConfig{on, narrow, {SnatFirst: 1, SnatLast: 65535, TickShift: 10, Growing: 1}}
	for _, ports := range [][2]uint16{{1024, 1024}, {1, 65535}} {
		for _, shift := range []uint16{0, 10, 31} {
			for _, external := range []uint16{0, 1} {
				list = append(list, bpf.MapsPacketConfig{SnatFirst: ports[0], SnatLast: ports[1], TickShift: shift, ExternalClusterip: external, DsrAccept: external})
			}
		}
	}
	// The node's own packets are balanced wherever pods have devices, and the rest is about those.
	for bits := range uint16(16) {
		list = append(list, bpf.MapsPacketConfig{
			SnatFirst: 1, SnatLast: 65535, TickShift: 10, ExternalClusterip: 1, HostFlows: 1,
			DsrAccept: 1, TunnelPort: uint32(bits>>2&1) * 8472, AnySourcePort: uint32(bits >> 3), Policies: uint64(bits & 1), Growing: bits & 1, Masquerade: bits >> 1 & 1, Bypass: uint32(bits >> 2 & 1), Pacer: uint32(bits>>3) * math.MaxUint32,
		})
	}
	return list
}

// Every field of the configuration has several values, so that no code is always left out.
func TestConfigs(t *testing.T) {
	fields := reflect.TypeFor[bpf.MapsPacketConfig]()
	for i := range fields.NumField() {
		if !fields.Field(i).IsExported() {
			continue // about the layout
		}
		for _, short := range []bool{true, false} {
			values := map[any]bool{}
			for _, config := range configs(short) {
				values[reflect.ValueOf(config).Field(i).Interface()] = true
			}
			if len(values) < 2 {
				t.Errorf("short %t: %s is always %v", short, fields.Field(i).Name, slices.Collect(maps.Keys(values)))
			}
		}
	}
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
	for _, config := range configs(testing.Short()) {
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
