package preflight

import (
	"encoding/binary"
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
		family := message[0]
		chains = append(chains, Chain{
			text(unix.NFTA_CHAIN_TABLE), text(unix.NFTA_CHAIN_NAME), (family == unix.NFPROTO_INET || family == unix.NFPROTO_IPV4) && dropsForwarded(attrs[unix.NFTA_CHAIN_HOOK].Value, attrs[unix.NFTA_CHAIN_POLICY].Value),
		})
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

// The values by which a chain of either family is asked about packets that are forwarded, and by
// which it drops what no rule decides about.
const (
	hookForward = 2 // NF_INET_FORWARD
	policyDrop  = 0 // NF_DROP
)

// dropsForwarded reports whether a chain with this hook and policy drops forwarded packets unless a
// rule accepts them.
func dropsForwarded(hook, policy []byte) bool {
	inner, err := nl.ParseRouteAttrAsMap(hook)
	number := inner[unix.NFTA_HOOK_HOOKNUM].Value
	return err == nil && len(number) == 4 && binary.BigEndian.Uint32(number) == hookForward &&
		len(policy) == 4 && binary.BigEndian.Uint32(policy) == policyDrop
}
