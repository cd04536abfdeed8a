package preflight

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// nft sends messages to nftables as one transaction.
func nft(messages ...[]byte) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	batch := nftMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.NFNL_SUBSYS_NFTABLES)
	for _, m := range messages {
		batch = append(batch, m...)
	}
	batch = append(batch, nftMessage(unix.NFNL_MSG_BATCH_END, 0, unix.NFNL_SUBSYS_NFTABLES)...)
	if err := unix.Sendto(socket, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(socket, answer, 0)
	if err != nil || n < unix.NLMSG_HDRLEN+4 {
		return errors.Join(err, fmt.Errorf("an answer of %d bytes", n))
	}
	if code := int32(nl.NativeEndian().Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// nftMessage returns a message about an object of the inet family.
func nftMessage(kind, flags, resource uint16, attrs ...*nl.RtAttr) []byte {
	body := binary.BigEndian.AppendUint16([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0}, resource)
	if kind <= unix.NFNL_MSG_BATCH_END { // these have no family
		body[0] = unix.AF_UNSPEC
	}
	for _, a := range attrs {
		body = append(body, a.Serialize()...)
	}
	header := nl.NewNetlinkRequest(int(kind), 0)
	header.Flags = unix.NLM_F_REQUEST | flags
	header.AddRawData(body)
	return header.Serialize()
}

// ListChains returns the chains of the namespace it runs in.
func TestListChains(t *testing.T) {
	rig.Root(t)
	ns := rig.NewNetns(t, "chains")
	if err := ns.Do(func() error {
		if chains, err := ListChains(); err != nil || len(chains) != 0 {
			t.Errorf("in a new namespace: %v, %v", chains, err)
		}
		table := func(attr int) *nl.RtAttr { return nl.NewRtAttr(attr, nl.ZeroTerminated("kube-proxy")) }
		messages := [][]byte{nftMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, 0, table(unix.NFTA_TABLE_NAME))}
		var want []Chain
		for i := range 300 { // more than fit into one answer
			name := fmt.Sprintf("service-%d", i)
			var flags uint16 = unix.NLM_F_CREATE
			if i == 299 {
				flags |= unix.NLM_F_ACK
			}
			messages = append(messages, nftMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWCHAIN, flags, 0,
				table(unix.NFTA_CHAIN_TABLE), nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(name))))
			want = append(want, Chain{"kube-proxy", name, false})
		}
		forward := func(name string, policy uint32) []byte {
			hook := nl.NewRtAttr(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, nil)
			hook.AddRtAttr(unix.NFTA_HOOK_HOOKNUM, binary.BigEndian.AppendUint32(nil, hookForward))
			hook.AddRtAttr(unix.NFTA_HOOK_PRIORITY, make([]byte, 4))
			return nftMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, 0, table(unix.NFTA_CHAIN_TABLE),
				nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(name)), hook, nl.NewRtAttr(unix.NFTA_CHAIN_POLICY, binary.BigEndian.AppendUint32(nil, policy)))
		}
		messages = slices.Insert(messages, 1, forward("accepts", 1), forward("drops", policyDrop))
		want = append(want, Chain{"kube-proxy", "accepts", false}, Chain{"kube-proxy", "drops", true})
		if err := nft(messages...); err != nil {
			return fmt.Errorf("make chains: %w", err)
		}
		chains, err := ListChains()
		if err != nil {
			return err
		}
		if len(chains) != len(want) || slices.ContainsFunc(want, func(c Chain) bool { return !slices.Contains(chains, c) }) {
			t.Errorf("listed %d of %d: %v", len(chains), len(want), chains)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
