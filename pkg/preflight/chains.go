package preflight

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// maxChains limits the list: a kube-proxy has two chains for each Service.
const maxChains = 200_000

// ListChains returns the nftables chains of this network namespace, of all families. It needs
// CAP_NET_ADMIN.
func ListChains() ([]Chain, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
	request.AddRawData([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0})
	var chains []Chain
	var broken error
	err := request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		const header = 4 // struct nfgenmsg
		if len(message) < header {
			return true
		}
		attrs, err := nl.ParseRouteAttrAsMap(message[header:])
		if err != nil {
			broken = err
			return false
		}
		text := func(attr uint16) string { return nl.BytesToString(attrs[attr].Value) }
		chains = append(chains, Chain{text(unix.NFTA_CHAIN_TABLE), text(unix.NFTA_CHAIN_NAME)})
		return len(chains) < maxChains
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // the kernel has no nftables
	}
	if err == nil {
		err = broken
	}
	if err != nil {
		return chains, fmt.Errorf("list chains of nftables: %w", err)
	}
	return chains, nil
}
