// Package masquerade reads a configuration file of ip-masq-agent, which says where pods keep their
// addresses.
package masquerade

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"sigs.k8s.io/yaml"
)

// maxNetworks limits a file; the programs' map has to hold the nodes' networks too.
const maxNetworks = 16384

// Rules is the content of a file.
type Rules struct {
	// Native are the networks to which pods keep their own addresses.
	Native []netip.Prefix
	// Interval is set if the file has a resyncInterval, which has no effect here.
	Interval bool
}

// form is the file format of ip-masq-agent.
type form struct {
	NonMasqueradeCIDRs []string        `json:"nonMasqueradeCIDRs"`
	MasqLinkLocal      bool            `json:"masqLinkLocal"`
	MasqLinkLocalIPv6  bool            `json:"masqLinkLocalIPv6"`
	ResyncInterval     json.RawMessage `json:"resyncInterval"`
}

// linkLocal are the link-local networks, which are native unless the file says otherwise.
var linkLocal = [2]netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")}

// Parse parses a file, which is YAML or JSON. A single mistake makes it unusable: with half of the
// list, packets to the other half would get other addresses.
func Parse(data []byte) (*Rules, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("it is empty; write {} for the defaults")
	}
	var f *form
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errors.New("it says nothing; write {} for the defaults")
	}
	if len(f.NonMasqueradeCIDRs) > maxNetworks {
		return nil, fmt.Errorf("nonMasqueradeCIDRs has %d networks, more than %d", len(f.NonMasqueradeCIDRs), maxNetworks)
	}
	r := &Rules{Interval: len(f.ResyncInterval) > 0}
	for _, text := range f.NonMasqueradeCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("%.64q of nonMasqueradeCIDRs is not a network such as 10.0.0.0/8 "+
				"or fd00::/8", text)
		}
		if prefix != prefix.Masked() {
			return nil, fmt.Errorf("%s of nonMasqueradeCIDRs is an address in the network %s: "+
				"write the network, or the address with its full length", text, prefix.Masked())
		}
		r.Native = append(r.Native, prefix)
	}
	for i, masqueraded := range []bool{f.MasqLinkLocal, f.MasqLinkLocalIPv6} {
		if !masqueraded {
			r.Native = append(r.Native, linkLocal[i])
		}
	}
	return r, nil
}
