// Package podnet is the agent's half of the pod network: which addresses pods have, which devices lead to them, and what
// of both is left over. What it knows is in files, one for an address and one for a registered device, and it is true
// after a crash at any step, since each file changes at once.
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

// Cooldown is how long an address rests after its pod: others may still send to it for as long as their name servers,
// connection tables and clients remember it.
const Cooldown = 5 * time.Minute

// Config is what a Network needs.
type Config struct {
	Dir string // where its files are
	// Chained is true where another plugin makes the devices and chooses the addresses.
	Chained bool
	// CIDRs returns where pods get their addresses from, or why that is not known.
	CIDRs func() ([]netip.Prefix, error)
	// Reserved tells addresses that must not be a pod's, such as the node's own.
	Reserved func(netip.Addr) bool
	// Others returns which addresses the cluster knows pods of this node by, whoever has given them; nil where nobody is asked.
	Others func() map[netip.Addr]model.Name
	MTU    func() (int, error)
	// Kind is of the devices that pods get who start now; none for veth.
	Kind cni.Kind
	// Largest returns how large packets of TCP may be at pods' devices; nil is as the kernel has it.
	Largest  func() cni.Largest
	Cooldown time.Duration
	// Meter is told of every request.
	Meter func(verb, outcome string, took time.Duration)
	// Programs carry the pods' packets; nil where the node's stack does so alone.
	Programs Programs
	// Ports leads from ports of the node to pods; nil where nobody does.
	Ports Ports
	// Traits returns how a pod is to be treated that was treated so, or is new, and of which its runtime asked that. Nil: all are treated alike.
	Traits func(pod cni.Pod, asked *cni.Bandwidth, was *Traits) Traits
	// Changed is signalled when Traits may say something else.
	Changed <-chan struct{}
	Log     *slog.Logger
	// Boot is what tells one start of the kernel from another; empty for the kernel's own id.
	Boot string
}

// Programs are those of the pods' devices, and what they know of pods.
type Programs interface {
	// SetPods makes them know these pods, and no others.
	SetPods([]maps.Pod) error
	AddPod(maps.Pod) error
	RemovePod(maps.Pod) error
}

// Network gives pods their addresses and keeps the node's way to them. It handles the plugin's requests.
type Network struct {
	cfg  Config
	rtnl *netlink.Handle // for what every pod costs; without it each request would open a socket of its own

	mu        sync.Mutex
	leases    *leases
	files     folder
	records   map[string]*Record  // by the name that the device has, or would have
	sockets   map[string]*os.File // sock_diag sockets in the pods' namespaces
	unknown   map[string]cni.Pod  // by device: pods whose records are lost, and of which too little can be known
	absent    map[string]int      // looks at which a device was not there
	reclaimed uint64
	mended    uint64
	moved     []model.Name // pods whose host ports this request has changed

	lans []lan // of other plugins, as of the last look

	mtu   int // of what was there at mtuAt: to ask costs a look at every route
	mtuAt time.Time
}

// The directories of the files.
const (
	addressesDir = "ipam"
	recordsDir   = "pods"
)

// New returns a Network that knows what its predecessor knew, less what is over: everything after another boot of the
// kernel, and what belongs to devices that are gone.
func New(cfg Config) (*Network, error) {
	if cfg.Boot == "" {
		var err error
		if cfg.Boot, err = readBoot(); err != nil {
			return nil, err
		}
	}
	n := &Network{cfg: cfg, records: map[string]*Record{}, sockets: map[string]*os.File{}, absent: map[string]int{},
		unknown: map[string]cni.Pod{}}
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
	if err := n.settle(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	for _, record := range n.records {
		n.open(record, nil)
	}
	n.takeMoved() // nobody waits for them
	return n, nil
}

// Close lets go of what was handed over. The files stay.
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
		n.cfg.Log.Warn("refused the plugin", "verb", request.Verb, "pod", request.Pod.String(), "container", request.Attachment.Container, "error", err)
	}
	if n.cfg.Meter != nil {
		n.cfg.Meter(string(request.Verb), outcome, time.Since(began))
	}
	return answer, err
}

// handle answers a request when what it changed is so. It waits without the lock: others are not to wait with it.
func (n *Network) handle(request *cni.Request, file *os.File) (*cni.Answer, error) {
	n.mu.Lock()
	known := n.records[request.Attachment.Device()] != nil
	answer, err := n.answer(request, file)
	moved := n.takeMoved()
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, pod := range moved {
		err := n.cfg.Ports.Await(pod)
		if err != nil && request.Verb == cni.Register {
			return nil, n.undo(request, known, err)
		}
		if err != nil { // what is gone is gone
			n.cfg.Log.Warn("a pod's host ports are not closed yet", "pod", pod.String(), "error", err)
			break
		}
	}
	return answer, nil
}

// undo takes back a registration whose ports are another pod's, if it was not there before. One that only takes longer than it
// should stays for whoever tries again.
func (n *Network) undo(request *cni.Request, known bool, why error) error {
	var refusal *types.Error
	if known || !errors.As(why, &refusal) || refusal.Code != cni.ErrPortTaken {
		return why
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.takeMoved()
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
		return &cni.Answer{}, n.ready(cni.ErrNotAvailable)
	}
	return nil, fmt.Errorf("unknown verb %q", request.Verb)
}

// ready takes over the node's CIDRs. Without any it returns an error of the code, which depends on who asks.
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

func (n *Network) allocate(request *cni.Request) (*cni.Answer, error) {
	if n.cfg.Chained {
		return nil, cni.Refusal(types.ErrInvalidNetworkConfig, "the agent runs with --pod-network=chained, and another plugin has to come before fairlead-cni")
	}
	if err := n.ready(types.ErrTryAgainLater); err != nil {
		return nil, err
	}
	if n.mtuAt.IsZero() || time.Since(n.mtuAt) > lookEvery {
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
	answer := &cni.Answer{MTU: n.mtu, Settings: Settings(), Kind: n.cfg.Kind}
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

// register notes a device and makes its addresses lead to it. The file is what the plugin opened in the pod's namespace.
func (n *Network) register(request *cni.Request, file *os.File) (err error) {
	defer func() {
		if err != nil && file != nil {
			file.Close()
		}
	}()
	device, name := request.Device, request.Attachment.Device()
	if device.Chained != n.cfg.Chained {
		return cni.Refusal(types.ErrInvalidNetworkConfig, "the agent runs with --pod-network=%s, and the plugins are configured otherwise", mode(n.cfg.Chained))
	}
	link, err := n.rtnl.LinkByIndex(device.Index)
	if err != nil || link.Attrs().Name != device.Name {
		return cni.Refusal(types.ErrTryAgainLater, "there is no device %d called %.32q", device.Index, device.Name)
	}
	device.Kind = cni.Kind(link.Type())
	if !device.Chained {
		if device.Name != name {
			return cni.Refusal(types.ErrInvalidNetworkConfig, "device %.32q is not %s", device.Name, name)
		}
		if err := n.leases.renew(request.Attachment, request.Addresses); err != nil {
			return cni.Refusal(types.ErrTryAgainLater, "%v any more", err)
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
	if err := n.vacant(record); err != nil {
		return err
	}
	if err := n.files.replace(name, record); err != nil {
		return err
	}
	if err := n.connect(record); err != nil {
		return errors.Join(err, n.files.remove(name))
	}
	n.open(record, n.records[name])
	n.records[name] = record
	delete(n.unknown, name)
	n.keep(name, file)
	if device.Chained && record.Limited() {
		return n.tellPods()
	}
	return nil
}

func mode(chained bool) string {
	if chained {
		return "chained"
	}
	return "main"
}

// connect makes the addresses of a device lead to it; another plugin has done that for its own.
func (n *Network) connect(record *Record) error {
	if record.Device.Chained {
		return nil
	}
	// The programs first: a pod that can be reached can be heard.
	if n.cfg.Programs != nil {
		if err := n.cfg.Programs.AddPod(podOf(record, n.firstOf(record))); err != nil {
			return err
		}
	}
	for _, addr := range record.Addresses {
		if err := lead(n.rtnl, addr, record.Device.Index, record.Device.PodMAC); err != nil {
			return err
		}
	}
	return n.answerFor(record)
}

// keep takes over the socket in a pod's namespace; nil closes the one that there was.
func (n *Network) keep(name string, socket *os.File) {
	if was := n.sockets[name]; was != nil {
		was.Close()
	}
	delete(n.sockets, name)
	if socket != nil {
		n.sockets[name] = socket
	}
}

// cookieOf returns the number of the network namespace that a sock_diag socket was opened in. The kernel says so, whoever
// sent it.
func cookieOf(socket *os.File) (uint64, error) {
	if socket == nil {
		return 0, errors.New("no socket of the pod's network namespace came with the request")
	}
	fd := int(socket.Fd())
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || kind != unix.NETLINK_SOCK_DIAG {
		return 0, errors.Join(errors.New("what came with the request is no sock_diag socket"), err)
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("ask for the cookie of the pod's network namespace: %w", err)
	}
	return cookie, nil
}

// release removes the device of an attachment, if the plugin could not, and then forgets the attachment.
func (n *Network) release(name string) error {
	if err := removeLink(name); err != nil {
		return err
	}
	return n.forget(name)
}

// forget lets go of what an attachment has that has no device.
func (n *Network) forget(name string) error {
	record := n.records[name]
	if record != nil {
		n.closePorts(record)
	}
	if record != nil && n.cfg.Programs != nil {
		if err := n.cfg.Programs.RemovePod(podOf(record, 0)); err != nil {
			return err
		}
	}
	if record != nil {
		n.answerNoMore(record)
	}
	if err := n.files.remove(name); err != nil {
		return err
	}
	delete(n.records, name)
	delete(n.absent, name)
	delete(n.unknown, name)
	n.keep(name, nil)
	return n.leases.release(name)
}

// check compares what the runtime thinks there is with what is there.
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
			return cni.Refusal(cni.ErrNotAsTold, "address %s is not one of %v", addr, record.Addresses)
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
			return cni.Refusal(cni.ErrNotAsTold, "address %s is not this pod's", addr)
		}
		if leads[addr] != record.Device.Index {
			return cni.Refusal(cni.ErrNotAsTold, "address %s does not lead to device %s", addr, name)
		}
	}
	return nil
}

// collect releases what a network has and the runtime does not.
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
