// Package podnet is the agent's half of the pod network: it knows which addresses pods have and
// which devices lead to them, and reclaims what is left over of both. Its state is in files, one
// for each address and one for each registered device. Each file changes atomically, so the state
// is right after a crash at any step.
package podnet

import (
	"errors"
	"fmt"
	"log/slog"
	stdmaps "maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Cooldown is how long an address rests after its pod is gone: name servers, connection tables and
// clients may remember it that long and still send to it.
const Cooldown = 5 * time.Minute

// Config is what a Network needs.
type Config struct {
	Dir string // of the files
	// Chained is set if another plugin makes the devices and chooses the addresses.
	Chained bool
	// CIDRs returns the prefixes of the node's pods, or why they are not known.
	CIDRs func() ([]netip.Prefix, error)
	// Reserved reports whether an address must not go to a pod, such as one of the node's own.
	Reserved func(netip.Addr) bool
	// Others returns the addresses that the cluster knows of pods on this node, whichever plugin
	// gave them. If nil, the cluster is not asked.
	Others func() map[netip.Addr]model.Name
	MTU    func() (int, error)
	// Kind is the kind of device that new pods get; veth if empty.
	Kind cni.Kind
	// Largest returns the largest TCP packets at pods' devices. If nil, the kernel's defaults stay.
	Largest  func() cni.Largest
	Cooldown time.Duration
	// Meter is called after every request.
	Meter func(verb, outcome string, took time.Duration)
	// Programs carry the pods' packets. If nil, the node's stack does so alone.
	Programs Programs
	// Ports leads from ports of the node to pods. If nil, host ports are ignored.
	Ports Ports
	// Traits returns how to treat a pod, from what its runtime asked for and its traits so far,
	// which are nil for a new pod. If Traits is nil, all pods are treated alike.
	Traits func(pod cni.Pod, asked *cni.Bandwidth, was *Traits) Traits
	// Registered is called when a device of a pod has come or gone. It must not block, and may be nil.
	Registered func()
	// Changed signals that Traits may return something else.
	Changed <-chan struct{}
	Log     *slog.Logger
	// Boot identifies this boot of the kernel; empty for the kernel's own id.
	Boot string
}

// Programs are the BPF programs on pods' devices, with their table of pods.
type Programs interface {
	// SetPods replaces all pods that the programs know.
	SetPods([]maps.Pod) error
	AddPod(maps.Pod) error
	RemovePod(maps.Pod) error
}

// Network gives pods their addresses and keeps the node's routes to them. It handles the plugin's
// requests.
type Network struct {
	cfg  Config
	rtnl *netlink.Handle // shared, so that not every request opens a socket of its own

	mu        sync.Mutex
	leases    *leases
	files     folder
	records   map[string]*Record  // by the name that the node's end has, or would have
	sockets   map[string]*os.File // sock_diag sockets in the pods' namespaces
	unknown   map[string]cni.Pod  // by device: pods without a record, of which too little is known to make one
	absent    map[string]int      // consecutive looks that did not find a device
	reclaimed uint64
	mended    uint64
	ports     portOpener
	proxies   neighborProxies

	mtu   int // as of mtuAt; cached, because finding it takes a dump of all routes
	mtuAt time.Time
}

// The directories of the files, below Config.Dir.
const (
	addressesDir = "ipam"
	recordsDir   = "pods"
)

// New returns a Network with the state of its predecessor, except for what is over: all of it after
// a reboot, and what belongs to devices that are gone.
func New(cfg Config) (*Network, error) {
	if cfg.Boot == "" {
		var err error
		if cfg.Boot, err = readBoot(); err != nil {
			return nil, err
		}
	}
	n := &Network{cfg: cfg, records: map[string]*Record{}, sockets: map[string]*os.File{}, absent: map[string]int{},
		unknown: map[string]cni.Pod{}, ports: portOpener{ports: cfg.Ports}}
	addresses, err := openFolder(filepath.Join(cfg.Dir, addressesDir))
	if err != nil {
		return nil, err
	}
	if n.files, err = openFolder(filepath.Join(cfg.Dir, recordsDir)); err != nil {
		return nil, err
	}
	if cfg.Others == nil {
		cfg.Others = func() map[netip.Addr]model.Name { return map[netip.Addr]model.Name{} }
	}
	n.leases = &leases{
		files: addresses, boot: cfg.Boot, cooldown: cfg.Cooldown, reserved: cfg.Reserved, others: cfg.Others, occupied: occupied,
		all: map[netip.Addr]*Lease{}, byDevice: map[string][]*Lease{},
	}
	if err := n.load(); err != nil {
		return nil, err
	}
	if n.rtnl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	n.proxies = neighborProxies{rtnl: n.rtnl, leases: n.leases, log: cfg.Log}
	if err := n.reconcileAtStart(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	for _, record := range n.records {
		n.ports.open(record, nil)
	}
	n.ports.takeMoved() // no request waits for these
	return n, nil
}

// Close closes the sockets, the pods' among them. The files stay.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rtnl.Close()
	var errs []error
	for _, socket := range n.sockets {
		errs = append(errs, socket.Close())
	}
	clear(n.sockets)
	return errors.Join(errs...)
}

// Handle answers a request of the plugin.
func (n *Network) Handle(request *cni.Request, file *os.File) (*cni.Answer, error) {
	began := time.Now()
	answer, err := n.handle(request, file)
	outcome := "ok"
	if err != nil {
		outcome = "error"
		n.cfg.Log.Warn("refused a request of the CNI plugin",
			"verb", request.Verb, "pod", request.Pod.String(), "container", request.Attachment.Container, "error", err)
	}
	if n.cfg.Meter != nil {
		n.cfg.Meter(string(request.Verb), outcome, time.Since(began))
	}
	return answer, err
}

// handle answers a request once its changes are in effect. It waits for that without the lock, so
// that other requests proceed.
func (n *Network) handle(request *cni.Request, file *os.File) (*cni.Answer, error) {
	n.mu.Lock()
	known := n.records[request.Attachment.Device()] != nil
	answer, err := n.answer(request, file)
	moved := n.ports.takeMoved()
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, pod := range moved {
		err := n.cfg.Ports.Await(pod)
		if err != nil && request.Verb == cni.Register {
			return nil, n.undo(request, known, err)
		}
		if err != nil { // the pod is gone either way
			n.cfg.Log.Warn("a pod's host ports are not closed yet", "pod", pod.String(), "error", err)
			break
		}
	}
	return answer, nil
}

// undo takes back a new registration whose ports belong to another pod. A registration that is
// merely slow stays: the runtime tries again and finds it.
func (n *Network) undo(request *cni.Request, known bool, why error) error {
	var refusal *types.Error
	if known || !errors.As(why, &refusal) || refusal.Code != cni.ErrPortTaken {
		return why
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.ports.takeMoved()
	return errors.Join(why, n.forget(request.Attachment.Device()))
}

func (n *Network) answer(request *cni.Request, file *os.File) (*cni.Answer, error) {
	if file != nil && request.Verb != cni.Register {
		file.Close()
	}
	switch request.Verb {
	case cni.Allocate:
		return n.allocate(request)
	case cni.Register:
		return &cni.Answer{}, n.register(request, file)
	case cni.Release:
		return &cni.Answer{}, n.release(request.Attachment.Device())
	case cni.Check:
		return &cni.Answer{}, n.check(request)
	case cni.Collect:
		removed, err := n.collect(request)
		return &cni.Answer{Removed: removed}, err
	case cni.Status:
		return &cni.Answer{}, n.addable(cni.ErrNotAvailable)
	}
	return nil, fmt.Errorf("unknown verb %q", request.Verb)
}

// ready updates the pools from the node's CIDRs. If there are none it returns an error with the
// given code, which depends on the request.
func (n *Network) ready(code uint) error {
	if n.cfg.Chained {
		return nil
	}
	prefixes, err := n.cfg.CIDRs()
	if err != nil {
		return cni.Refusal(code, "%v", err)
	}
	n.leases.setPools(prefixes)
	return nil
}

// addable returns why no pod can be added, as an error with the given code.
func (n *Network) addable(code uint) error {
	if err := n.ready(code); err != nil {
		return err
	}
	for _, files := range []folder{n.leases.files, n.files} {
		if err := files.writable(); err != nil {
			return cni.Refusal(code, "%v", err)
		}
	}
	return nil
}

func (n *Network) allocate(request *cni.Request) (*cni.Answer, error) {
	if n.cfg.Chained {
		return nil, cni.Refusal(types.ErrInvalidNetworkConfig,
			"the agent runs with --pod-network=chained: put another plugin before fairlead-cni in the CNI configuration")
	}
	if err := n.ready(types.ErrTryAgainLater); err != nil {
		return nil, err
	}
	if n.mtuAt.IsZero() || time.Since(n.mtuAt) > scanEvery {
		var err error
		if n.mtu, err = n.cfg.MTU(); err != nil {
			return nil, err
		}
		n.mtuAt = time.Now()
	}
	if err := n.recognize(request.Attachment, request.Pod); err != nil {
		return nil, err
	}
	leased, err := n.leases.allocate(request.Attachment, request.Pod, request.Addresses, request.WithoutV6)
	if err != nil {
		return nil, err
	}
	answer := &cni.Answer{MTU: n.mtu, Settings: Settings(), Kind: n.cfg.Kind, SetsUp: true}
	if n.cfg.Largest != nil {
		answer.Largest = n.cfg.Largest()
	}
	answer.Pieces = pieces(n.traits(&Record{Pod: request.Pod, Device: cni.Device{Bandwidth: request.Bandwidth}}, nil).Out, n.mtu)
	for _, lease := range leased {
		answer.Addresses = append(answer.Addresses, lease.Address)
	}
	slices.SortFunc(answer.Addresses, netip.Addr.Compare)
	return answer, nil
}

// register records a device and routes its addresses to it. file is the socket that the plugin
// opened in the pod's namespace.
func (n *Network) register(request *cni.Request, file *os.File) (err error) {
	defer func() {
		if err != nil && file != nil {
			file.Close()
		}
	}()
	device, name := request.Device, request.Attachment.Device()
	if device.Chained != n.cfg.Chained {
		return cni.Refusal(types.ErrInvalidNetworkConfig,
			"the agent runs with --pod-network=%s, but the CNI configuration is for the other mode", mode(n.cfg.Chained))
	}
	link, err := n.rtnl.LinkByIndex(device.Index)
	if err != nil || link.Attrs().Name != device.Name {
		return cni.Refusal(types.ErrTryAgainLater, "there is no device %d called %.32q", device.Index, device.Name)
	}
	device.Kind = cni.Kind(link.Type())
	if !device.Chained {
		if device.Name != name {
			return cni.Refusal(types.ErrInvalidNetworkConfig,
				"the device is called %.32q, and should be %s", device.Name, name)
		}
		if err := n.leases.renew(request.Attachment, request.Addresses); err != nil {
			return cni.Refusal(types.ErrTryAgainLater, "%v", err)
		}
	}
	cookie, err := cookieOf(file)
	if err != nil {
		return cni.Refusal(types.ErrInvalidNetNS, "%v", err)
	}
	record := &Record{
		Owner: request.Attachment, Pod: request.Pod, Addresses: request.Addresses, Device: *device, Cookie: cookie, Boot: n.cfg.Boot,
		Since: time.Now().UTC().Truncate(time.Second),
	}
	record.Traits = n.traits(record, n.records[name])
	if err := n.ports.vacant(record, n.records); err != nil {
		return err
	}
	if err := n.files.replace(name, record); err != nil {
		return err
	}
	if err := n.connect(record); err != nil {
		return errors.Join(err, n.files.remove(name))
	}
	n.ports.open(record, n.records[name])
	n.records[name] = record
	delete(n.unknown, name)
	n.storeSocket(name, file)
	n.tell()
	if device.Chained && record.Limited() {
		return n.writePods()
	}
	return nil
}

// tell says that a device has come or gone.
func (n *Network) tell() {
	if n.cfg.Registered != nil {
		n.cfg.Registered()
	}
}

func mode(chained bool) string {
	if chained {
		return "chained"
	}
	return "main"
}

// connect routes the addresses of a device to it. For a chained device, the other plugin has done
// so.
func (n *Network) connect(record *Record) error {
	if record.Device.Chained {
		return nil
	}
	// The programs come first: once its device is up, the pod can send, and from the first route on
	// it can be reached.
	if n.cfg.Programs != nil {
		if err := n.cfg.Programs.AddPod(podOf(record, n.firstOf(record))); err != nil {
			return err
		}
	}
	if err := setUp(n.rtnl, &record.Device); err != nil {
		return err
	}
	for _, addr := range record.Addresses {
		if err := lead(n.rtnl, addr, record.Device.Index, record.Device.PodMAC); err != nil {
			return err
		}
	}
	return n.proxies.answerFor(record)
}

// storeSocket stores the socket of a pod's namespace and closes the previous one; nil only closes.
func (n *Network) storeSocket(name string, socket *os.File) {
	if was := n.sockets[name]; was != nil {
		was.Close()
	}
	delete(n.sockets, name)
	if socket != nil {
		n.sockets[name] = socket
	}
}

// release removes the device of an attachment, in case the plugin could not, and forgets the
// attachment.
func (n *Network) release(name string) error {
	if err := removeLink(name); err != nil {
		return err
	}
	return n.forget(name)
}

// forget drops all state of an attachment whose device is gone.
func (n *Network) forget(name string) error {
	record := n.records[name]
	if record != nil {
		n.ports.closePorts(record)
	}
	if record != nil && n.cfg.Programs != nil {
		if err := n.cfg.Programs.RemovePod(podOf(record, 0)); err != nil {
			return err
		}
	}
	if record != nil {
		n.proxies.answerNoMore(record)
	}
	if err := n.files.remove(name); err != nil {
		return err
	}
	delete(n.records, name)
	delete(n.absent, name)
	delete(n.unknown, name)
	n.storeSocket(name, nil)
	n.tell()
	return n.leases.release(name)
}

// check compares what the runtime believes with what is there.
func (n *Network) check(request *cni.Request) error {
	name := request.Attachment.Device()
	if err := errors.Join(n.recognize(request.Attachment, request.Pod), n.remember(request)); err != nil {
		return err
	}
	record := n.records[name]
	if record == nil {
		return cni.Refusal(types.ErrUnknownContainer, "container %.64q has no interface %s of this network", request.Attachment.Container, request.Attachment.IfName)
	}
	for _, addr := range request.Addresses {
		if !slices.Contains(record.Addresses, addr) {
			return cni.Refusal(cni.ErrMismatch, "address %s is not one of %v", addr, record.Addresses)
		}
	}
	if record.Device.Chained {
		return nil
	}
	leads, err := hostRoutes()
	if err != nil {
		return err
	}
	for _, addr := range record.Addresses {
		if lease := n.leases.all[addr]; lease == nil || lease.Owner != record.Owner || lease.Released != 0 {
			return cni.Refusal(cni.ErrMismatch, "address %s does not belong to this pod", addr)
		}
		if leads[addr] != record.Device.Index {
			return cni.Refusal(cni.ErrMismatch, "address %s does not lead to device %s", addr, name)
		}
	}
	return nil
}

// collect releases the attachments of a network that the runtime does not list.
func (n *Network) collect(request *cni.Request) (int, error) {
	valid := map[string]bool{}
	for _, attachment := range request.Valid {
		attachment.Network = request.Attachment.Network
		valid[attachment.Device()] = true
		if err := n.recognize(attachment, cni.Pod{}); err != nil {
			return 0, err
		}
	}
	gone := map[string]bool{}
	for name, record := range n.records {
		gone[name] = record.Owner.Network == request.Attachment.Network
	}
	for name, leased := range n.leases.byDevice {
		gone[name] = gone[name] || leased[0].Owner.Network == request.Attachment.Network
	}
	removed := 0
	for _, name := range slices.Sorted(stdmaps.Keys(gone)) {
		if !gone[name] || valid[name] {
			continue
		}
		if err := n.release(name); err != nil {
			return removed, err
		}
		removed++
		n.reclaimed++
	}
	return removed, nil
}
