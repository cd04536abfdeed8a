package podnet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// needQueue ends the test on a kernel without nftables rules that hand packets to a process. Not
// every machine has nft, so it asks the kernel itself to accept such a rule, in a namespace that is
// removed with it.
func needQueue(t *testing.T) {
	t.Helper()
	err := rig.NewNetns(t, "trial").Do(tryQueue)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT):
		rig.Lacking(t, "nfqueue", fmt.Sprintf("the kernel's nftables hand no packets to a process (CONFIG_NFT_QUEUE, CONFIG_NETFILTER_NETLINK_QUEUE): %v", err))
	case err != nil:
		t.Fatal(err)
	}
}

// nftMessage returns a message to the kernel's nftables, with attributes.
func nftMessage(kind, flags int, attributes ...*nl.RtAttr) *nl.NetlinkRequest {
	subsystem := unix.NFNL_SUBSYS_NFTABLES << 8
	about := &nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET}
	if kind == unix.NFNL_MSG_BATCH_BEGIN || kind == unix.NFNL_MSG_BATCH_END {
		subsystem = 0
		about = &nl.Nfgenmsg{ResId: binary.NativeEndian.Uint16([]byte{0, unix.NFNL_SUBSYS_NFTABLES})}
	}
	m := nl.NewNetlinkRequest(subsystem|kind, flags)
	m.AddData(about)
	for _, a := range attributes {
		m.AddData(a)
	}
	return m
}

func nftName(kind int, name string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(name)) }

// tryQueue adds a rule that queues packets.
func tryQueue() error {
	rule := nftMessage(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND,
		nftName(unix.NFTA_RULE_TABLE, "t"), nftName(unix.NFTA_RULE_CHAIN, "c"))
	expressions := nl.NewRtAttr(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, nil)
	queue := expressions.AddRtAttr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, nil)
	queue.AddRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated("queue"))
	queue.AddRtAttr(unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NFTA_QUEUE_NUM, []byte{0, 100})
	rule.AddData(expressions)
	return nftChange(
		nftMessage(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, nftName(unix.NFTA_TABLE_NAME, "t")),
		nftMessage(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, nftName(unix.NFTA_CHAIN_TABLE, "t"), nftName(unix.NFTA_CHAIN_NAME, "c")),
		rule)
}

// nftChange makes a change of nftables out of these messages. The kernel makes one change at a time in a namespace, and
// has made it when this returns.
func nftChange(messages ...*nl.NetlinkRequest) error {
	batch := nftMessage(unix.NFNL_MSG_BATCH_BEGIN, 0).Serialize()
	for _, m := range append(messages, nftMessage(unix.NFNL_MSG_BATCH_END, 0)) {
		batch = append(batch, m.Serialize()...)
	}
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := unix.Sendto(socket.GetFd(), batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(socket.GetFd(), answer, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := nftRefusal(answer[:n]); err != nil {
			return err
		}
	}
}

// nftRefusal returns the first error among the kernel's answers.
func nftRefusal(data []byte) error {
	answers, err := syscall.ParseNetlinkMessage(data)
	for _, a := range answers {
		if a.Header.Type == unix.NLMSG_ERROR && err == nil {
			if code := int32(binary.NativeEndian.Uint32(a.Data)); code != 0 {
				err = unix.Errno(-code)
			}
		}
	}
	return err
}

// setHolds reports whether a set contains an address. A table that is just being made does not have
// the set yet.
func setHolds(table, set string, addr netip.Addr) (bool, error) {
	elements, err := nftMessage(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP,
		nftName(unix.NFTA_SET_ELEM_LIST_TABLE, table), nftName(unix.NFTA_SET_ELEM_LIST_SET, set)).Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list set %s: %w", set, err)
	}
	for _, e := range elements {
		if bytes.Contains(e, addr.AsSlice()) { // besides keys, it only contains names
			return true, nil
		}
	}
	return false, nil
}
