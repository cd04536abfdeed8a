package datapath

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	loopbackIndex = 1 // in every network namespace

	inetConf           = 1  // IFLA_INET_CONF
	devconfAcceptLocal = 23 // accept_local in the kernel's enumeration of a device's settings

	// acceptLocal is the setting of the loopback device, below /proc/sys.
	acceptLocal = "net/ipv4/conf/lo/accept_local"
)

// turnOnAcceptLocal has the stack take packets from the loopback device whose source is an address of
// this node. If it does not yet, that is noted first, so that cleanup turns off what an agent turned
// on, and nothing else.
func (d *deviceLinks) turnOnAcceptLocal() error {
	now, err := os.ReadFile(filepath.Join("/proc/sys", acceptLocal))
	if err != nil {
		return fmt.Errorf("read a setting: %w", err)
	}
	was := strings.TrimSpace(string(now))
	if was == "1" {
		return nil
	}
	if d.packets.Note != nil {
		if err := d.packets.Note(acceptLocal, was, "1"); err != nil {
			return err
		}
	}
	return setAcceptLocal()
}

// setAcceptLocal sets net.ipv4.conf.lo.accept_local. The packet programs send those packets there that
// need fragmentation. No other host can send packets by that device, and what this node itself
// sends by it has its route already, so nothing else changes. An agent in an unprivileged container
// cannot write below /proc/sys, hence netlink.
func setAcceptLocal() error {
	inet := nl.NewRtAttr(unix.AF_INET, nil)
	inet.AddRtAttr(inetConf, nil).AddRtAttr(devconfAcceptLocal, nl.Uint32Attr(1))
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddChild(inet)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = loopbackIndex
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	request.AddData(message)
	request.AddData(families)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set net.ipv4.conf.lo.accept_local: %w", err)
	}
	return nil
}
