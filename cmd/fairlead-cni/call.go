package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"fairlead.io/fairlead/pkg/cni"
)

const (
	defaultSocket = "/run/fairlead/" + cni.SocketName
	// restart is how long the agent may be away before the runtime has to try again.
	restart = 10 * time.Second
)

// config is the plugin's entry in the network configuration, as the runtime passes it.
type config struct {
	types.PluginConf
	Socket        string `json:"socket"`
	RuntimeConfig struct {
		PortMappings []cni.PortMapping `json:"portMappings"`
		Bandwidth    *cni.Bandwidth    `json:"bandwidth"`
		MAC          string            `json:"mac"`
		IPs          []string          `json:"ips"`
	} `json:"runtimeConfig"`
}

// parseConfig reads the configuration. Its errors have the CNI codes for a bad one.
func parseConfig(stdin []byte) (*config, error) {
	c := &config{Socket: defaultSocket}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, cni.Refusal(types.ErrDecodingFailure, "read the configuration: %v", err)
	}
	if !filepath.IsAbs(c.Socket) {
		return nil, cni.Refusal(types.ErrInvalidNetworkConfig, "socket %.108q of the configuration is not an absolute path", c.Socket)
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, cni.Refusal(types.ErrDecodingFailure, "read prevResult: %v", err)
	}
	return c, nil
}

// asked returns the addresses and the MAC that the runtime wants for the pod.
func (c *config) asked() (addrs []netip.Addr, mac net.HardwareAddr, err error) {
	for _, text := range c.RuntimeConfig.IPs {
		bare, _, _ := strings.Cut(text, "/")
		addr, err := netip.ParseAddr(bare)
		if err != nil || addr.Zone() != "" {
			return nil, nil, cni.Refusal(types.ErrInvalidNetworkConfig,
				"%.64q of the capability ips is not an IP address", text)
		}
		addrs = append(addrs, addr.Unmap())
	}
	if c.RuntimeConfig.MAC == "" {
		return addrs, nil, nil
	}
	mac, err = net.ParseMAC(c.RuntimeConfig.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return nil, nil, cni.Refusal(types.ErrInvalidNetworkConfig,
			"%.64q of the capability mac is not a unicast Ethernet address", c.RuntimeConfig.MAC)
	}
	return addrs, mac, nil
}

// call is one run of the plugin.
type call struct {
	*skel.CmdArgs
	config     *config
	attachment cni.Attachment
	pod        cni.Pod
	agent      *cni.Client
}

// newCall reads what the runtime passed. patience is how long to wait for an agent that is away.
func newCall(args *skel.CmdArgs, patience time.Duration) (*call, error) {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return nil, err
	}
	pod := podOf(args.Args)
	if err := pod.Validate(); err != nil {
		return nil, cni.Refusal(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %v", err)
	}
	return &call{
		CmdArgs: args, config: c, pod: pod,
		attachment: cni.Attachment{Network: c.Name, Container: args.ContainerID, IfName: args.IfName},
		agent:      &cni.Client{Path: c.Socket, Patience: patience},
	}, nil
}

// podOf reads CNI_ARGS, a list of KEY=VALUE separated by semicolons. It ignores the keys of others.
func podOf(args string) cni.Pod {
	var pod cni.Pod
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			pod.Namespace = value
		case "K8S_POD_NAME":
			pod.Name = value
		case "K8S_POD_UID":
			pod.UID = value
		}
	}
	return pod
}

// request returns a request about this attachment.
func (c *call) request(verb cni.Verb) *cni.Request {
	return &cni.Request{Verb: verb, Attachment: c.attachment, Pod: c.pod}
}

// previous returns prevResult, which is from the plugin before or from ADD, in the newest version;
// nil if there is none.
func (c *call) previous() (*current.Result, error) {
	if c.config.PrevResult == nil {
		return nil, nil
	}
	result, err := current.NewResultFromResult(c.config.PrevResult)
	if err != nil {
		return nil, cni.Refusal(types.ErrDecodingFailure, "read prevResult: %v", err)
	}
	return result, nil
}

// addressesOf returns the addresses that a result has for the interface of this attachment.
func (c *call) addressesOf(result *current.Result) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		if at := ip.Interface; at != nil {
			if *at < 0 || *at >= len(result.Interfaces) {
				return nil, cni.Refusal(types.ErrInvalidNetworkConfig, "prevResult has no interface %d", *at)
			}
			if i := result.Interfaces[*at]; i.Sandbox == "" || i.Name != c.IfName {
				continue
			}
		}
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, cni.Refusal(types.ErrInvalidNetworkConfig,
				"prevResult has the invalid address %v", ip.Address.IP)
		}
		addrs = append(addrs, addr.Unmap())
	}
	return addrs, nil
}

// describe adds to a device what the runtime wants of it.
func (c *call) describe(device *cni.Device) *cni.Device {
	device.HostPorts, device.Bandwidth = c.config.RuntimeConfig.PortMappings, c.config.RuntimeConfig.Bandwidth
	for i := range device.HostPorts {
		device.HostPorts[i].Protocol = strings.ToLower(device.HostPorts[i].Protocol)
	}
	return device
}

// unexpected returns the error for something that is not as ADD left it.
func unexpected(format string, args ...any) error {
	return cni.Refusal(cni.ErrMismatch, "%s", fmt.Sprintf(format, args...))
}
