package minimal

import (
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/test/rig"
)

// RedirectKind is how packets get from one wire to another.
type RedirectKind string

// The ways to redirect.
const (
	TCRedirect  RedirectKind = "tc_redirect"      // out of the device, to the far end of its wire
	PeerAtOnce  RedirectKind = "tc_redirect_peer" // into the namespace at the far end, without the wire
	XDPRedirect RedirectKind = "xdp_redirect"     // as a frame; see NodePortPrograms.Attach
)

// AttachRedirect redirects every unicast packet that arrives at a device of a node to a hop.
func AttachRedirect(node *rig.Netns, kind RedirectKind, ifindex int, to Hop) (*Attached, error) {
	spec, err := loadRedirect()
	if err != nil {
		return nil, fmt.Errorf("read redirect programs: %w", err)
	}
	if spec.Programs[string(kind)] == nil {
		return nil, fmt.Errorf("redirect: no way %q", kind)
	}
	row := redirectHop{Ifindex: uint32(to.Ifindex)}
	copy(row.Dmac[:], to.Remote)
	copy(row.Smac[:], to.Local)
	if err := spec.Variables["hop"].Set(row); err != nil {
		return nil, fmt.Errorf("set hop: %w", err)
	}
	attached := &Attached{}
	err = within(node, func() error {
		var collection *ebpf.Collection
		if collection, err = ebpf.NewCollection(spec); err != nil {
			return fmt.Errorf("load redirect programs: %w", err)
		}
		attached.own(closer(collection.Close))
		if kind == XDPRedirect {
			if err := collection.Maps["port"].Put(uint32(0), row.Ifindex); err != nil {
				return fmt.Errorf("set port: %w", err)
			}
		}
		return attached.attach(collection.Programs[string(kind)], ifindex)
	})
	if err != nil {
		_ = attached.Close() // the first error matters
		return nil, err
	}
	return attached, nil
}
