// Package cni is what the plugin that a container runtime calls and the agent say to each other: one request and one
// answer over a unix socket that only root may open. It knows neither Kubernetes nor BPF, since the plugin starts for
// every pod.
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

// Pod is what the runtime says of whom the container is for. All of it may be empty, as without Kubernetes.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// String returns namespace/name, or "" for none.
func (p Pod) String() string {
	if p.Namespace == "" && p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// The device of an attachment on the node has a name that follows from the attachment, so whoever has to take it away
// needs no record of it.
const (
	devicePrefix = "fl"
	deviceDigits = 12
)

// digest is the same for the same attachment, and for no other.
func (a Attachment) digest(use string) []byte {
	sum := sha256.Sum256([]byte(strings.Join([]string{use, a.Network, a.Container, a.IfName}, "\x00")))
	return sum[:]
}

// Device returns the name of the attachment's device on the node.
func (a Attachment) Device() string {
	return devicePrefix + hex.EncodeToString(a.digest("device"))[:deviceDigits]
}

// IsDevice reports whether a name is one that Device returns.
func IsDevice(name string) bool {
	digits, ok := strings.CutPrefix(name, devicePrefix)
	if !ok || len(digits) != deviceDigits {
		return false
	}
	return strings.Trim(digits, "0123456789abcdef") == ""
}

// MACs returns the addresses of both ends. They are set and not left to the kernel, since udev would replace one that the
// kernel chose, at some moment after neighbours were told.
func (a Attachment) MACs() (node, pod net.HardwareAddr) {
	mac := func(use string) net.HardwareAddr {
		m := net.HardwareAddr(a.digest(use)[:6])
		m[0] = m[0]&^1 | 2 // for one, and administered locally
		return m
	}
	return mac("node mac"), mac("pod mac")
}

// Validate holds the names to what CNI allows.
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

// Validate holds the names to what can be shown.
func (p Pod) Validate() error {
	return errors.Join(short("pod namespace", p.Namespace), short("pod name", p.Name), short("pod uid", p.UID))
}

// maxName is more than Kubernetes and runtimes use.
const maxName = 253

func short(what, name string) error {
	if len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("%s %.64q is not one line of at most %d bytes", what, name, maxName)
	}
	return nil
}
