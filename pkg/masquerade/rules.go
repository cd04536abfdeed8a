// Package masquerade reads where pods keep their addresses from a file in the form of ip-masq-agent's.
package masquerade

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"sigs.k8s.io/yaml"
)

// maxNetworks is what a file may have: the map of the programs is for the nodes' networks too.
const maxNetworks = 16384

// Rules are what a file says.
type Rules struct {
	// Native are the networks to which pods speak under their own addresses.
	Native []netip.Prefix
	// Interval is true if the file has a resyncInterval, which means nothing here.
	Interval bool
}

// form is the file as ip-masq-agent has it.
type form struct {
	NonMasqueradeCIDRs []string        `json:"nonMasqueradeCIDRs"`
	MasqLinkLocal      bool            `json:"masqLinkLocal"`
	MasqLinkLocalIPv6  bool            `json:"masqLinkLocalIPv6"`
	ResyncInterval     json.RawMessage `json:"resyncInterval"`
}

// Link-local networks, which are native unless the file says otherwise.
var linkLocal = [2]netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")}

// Parse reads a file, YAML or JSON. One mistake in it is one too many: half of a list would change the addresses of the other half.
func Parse(data []byte) (*Rules, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("it is empty; {} is a file that says nothing")
	}
	var f *form
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errors.New("it says nothing; {} does so on purpose")
	}
	if len(f.NonMasqueradeCIDRs) > maxNetworks {
		return nil, fmt.Errorf("nonMasqueradeCIDRs has %d networks, more than %d", len(f.NonMasqueradeCIDRs), maxNetworks)
	}
	r := &Rules{Interval: len(f.ResyncInterval) > 0}
	for _, text := range f.NonMasqueradeCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("%.64q of nonMasqueradeCIDRs is no network such as 10.0.0.0/8 or fd00::/8", text)
		}
		if prefix != prefix.Masked() {
			return nil, fmt.Errorf("%s of nonMasqueradeCIDRs is an address in the network %s: say which of both it is", text, prefix.Masked())
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
