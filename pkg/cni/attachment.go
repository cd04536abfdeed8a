// Package cni is the protocol between the agent and the plugin that a container runtime calls: one
// request and one answer over a unix socket that only root may open. It links neither Kubernetes
// nor BPF, since the plugin starts for every pod.
package cni

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/utils"
)

// Attachment names what a runtime attaches: one interface of one container to one network.
type Attachment struct {
	Network   string `json:"network"`
	Container string `json:"container"`
	IfName    string `json:"ifname"`
}

// Pod identifies the pod of a container, as the runtime says. Any field may be empty, as all are
// without Kubernetes.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// String returns namespace/name, or "" if both are empty.
func (p Pod) String() string {
	if p.Namespace == "" && p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// The name of an attachment's device on the node is derived from the attachment, so that removing
// the device takes no record of it.
const (
	devicePrefix = "fl"
	deviceDigits = 12
)

// digest returns a hash of the attachment, different for each use.
func (a Attachment) digest(use string) []byte {
	sum := sha256.Sum256([]byte(strings.Join([]string{use, a.Network, a.Container, a.IfName}, "\x00")))
	return sum[:]
}

// Device returns the name of the attachment's device on the node.
func (a Attachment) Device() string {
	return devicePrefix + hex.EncodeToString(a.digest("device"))[:deviceDigits]
}

// IsDevice reports whether Device can return name.
func IsDevice(name string) bool {
	digits, ok := strings.CutPrefix(name, devicePrefix)
	if !ok || len(digits) != deviceDigits {
		return false
	}
	return strings.Trim(digits, "0123456789abcdef") == ""
}

// MACs returns the addresses of both ends. The plugin sets them rather than leaving them to the
// kernel: udev replaces an address that the kernel chose, perhaps only after neighbors were told.
func (a Attachment) MACs() (node, pod net.HardwareAddr) {
	mac := func(use string) net.HardwareAddr {
		m := net.HardwareAddr(a.digest(use)[:6])
		m[0] = m[0]&^1 | 2 // unicast, and locally administered
		return m
	}
	return mac("node mac"), mac("pod mac")
}

// Validate checks the names against the rules of CNI.
func (a Attachment) Validate() error {
	for _, valid := range []func() error{
		func() error { return asError(utils.ValidateNetworkName(a.Network)) },
		func() error { return asError(utils.ValidateContainerID(a.Container)) },
		func() error { return asError(utils.ValidateInterfaceName(a.IfName)) },
		func() error { return short("network name", a.Network) },
		func() error { return short("container id", a.Container) },
	} {
		if err := valid(); err != nil {
			return err
		}
	}
	return nil
}

// Validate checks that the names can be shown.
func (p Pod) Validate() error {
	return errors.Join(short("pod namespace", p.Namespace), short("pod name", p.Name), short("pod uid", p.UID))
}

// maxName is more than Kubernetes and runtimes use.
const maxName = 253

func short(what, name string) error {
	if len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("%s %.64q must be one printable line of at most %d bytes", what, name, maxName)
	}
	return nil
}
