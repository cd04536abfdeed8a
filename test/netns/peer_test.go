package netns

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// connOrigins returns the records of TCP sockets, by row.
func (n *node) connOrigins() map[uint32]bpf.MapsConnOrigin {
	n.t.Helper()
	all := n.Maps().ConnOrigins
	keys, rows := make([]uint32, all.MaxEntries()), make([]bpf.MapsConnOrigin, all.MaxEntries())
	var cursor ebpf.MapBatchCursor
	found, err := all.BatchLookup(&cursor, keys, rows, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) || found != len(rows) {
		n.t.Fatalf("read %d rows of %d: %v", found, len(rows), err)
	}
	taken := map[uint32]bpf.MapsConnOrigin{}
	for i, row := range rows {
		if row.Cookie != 0 {
			taken[keys[i]] = row
		}
	}
	return taken
}

// takeAll gives every free row to sockets that do not exist.
func (n *node) takeAll() {
	n.t.Helper()
	taken := n.connOrigins()
	for i := range n.Maps().ConnOrigins.MaxEntries() {
		if _, ok := taken[i]; ok {
			continue
		}
		if err := n.Maps().ConnOrigins.Put(i, bpf.MapsConnOrigin{Cookie: 1<<63 + uint64(i)}); err != nil {
			n.t.Fatal(err)
		}
	}
}

// newClient returns a program that dials what another program in its namespace serves.
func newClient(t *testing.T, n *node) *program {
	t.Helper()
	ns := rig.NewNetns(t, "pod")
	server := &pod{t: t, process: rig.NewChild(t, n.cgroup, ns, "pod")}
	server.listen(append([]netip.AddrPort{back6}, back4...)...)
	return newProgram(t, n.cgroup, ns)
}

// tcp opens a socket and connects it.
func (p *program) tcp(to netip.AddrPort) int {
	p.t.Helper()
	p.sockets++
	p.must(op{Call: "open", Socket: p.sockets, Addr: to, TCP: true})
	p.must(op{Call: "connect", Socket: p.sockets, Addr: to})
	return p.sockets
}

func (p *program) peer(socket int) netip.AddrPort {
	p.t.Helper()
	return p.must(op{Call: "peer", Socket: socket}).Addr
}

// The record of a TCP socket exists from its connect to its close. No other socket has one in its
// place.
func TestTCPRecordDiesWithItsSocket(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, backends: back4[:1]})
	n.add(service{vip: vip6, backends: []netip.AddrPort{back6}})
	n.add(service{vip: vip4, proto: model.UDP, backends: back4[:1]})
	p := newClient(t, n)

	first, second := p.tcp(vip4), p.tcp(vip6)
	p.tcp(back4[0])
	datagrams := p.udp(vip4, false)
	p.must(op{Call: "connect", Socket: datagrams, Addr: vip4})
	if taken := n.connOrigins(); len(taken) != 2 {
		t.Errorf("%d records for two TCP sockets connected to services: %+v", len(taken), taken)
	}
	if have := p.peer(datagrams); have != vip4 {
		t.Errorf("the peer of a UDP socket is %s, want %s", have, vip4)
	}
	p.must(op{Call: "close", Socket: datagrams})
	p.must(op{Call: "close", Socket: first})
	if taken := n.connOrigins(); len(taken) != 1 {
		t.Errorf("%d records with one of two sockets left: %+v", len(taken), taken)
	}
	if have := p.peer(second); have != vip6 {
		t.Errorf("the peer of the other one is %s, want %s", have, vip6)
	}
	p.must(op{Call: "close", Socket: second})
	if taken := n.connOrigins(); len(taken) != 0 {
		t.Errorf("%d records with all sockets closed: %+v", len(taken), taken)
	}
}

// The sockets of a killed process are closed, and their records go.
func TestTCPRecordsOfAProcessThatWasKilled(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, backends: back4[:1]})
	p := newClient(t, n)
	for range 20 {
		p.tcp(vip4)
	}
	if taken := n.connOrigins(); len(taken) != 20 {
		t.Fatalf("%d records for 20 connected sockets", len(taken))
	}
	p.process.Kill()
	if taken := n.connOrigins(); len(taken) != 0 {
		t.Errorf("the process is gone, but %d of its records are left", len(taken))
	}
}

// A socket whose row is taken by another finds room elsewhere, also when it connects again; the
// other socket's record stays.
func TestTCPRecordsBeyondTheRows(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, backends: back4[:1]})
	n.add(service{vip: vip6, backends: []netip.AddrPort{back6}})
	p := newClient(t, n)
	owner := p.tcp(vip4)
	n.takeAll()
	before := n.connOrigins()
	late := p.tcp(vip4)
	for name, socket := range map[string]int{"with a row": owner, "without": late} {
		if have := p.peer(socket); have != vip4 {
			t.Errorf("the peer of a socket %s is %s, want %s", name, have, vip4)
		}
	}
	p.must(op{Call: "close", Socket: late})
	after := n.connOrigins()
	if len(after) != len(before) || int(n.Maps().ConnOrigins.MaxEntries()) != len(after) {
		t.Errorf("%d rows were taken, now %d", len(before), len(after))
	}
	if missed := n.count(bpf.MapsReasonREASON_NO_MEMORY); missed != 0 {
		t.Errorf("%d records found no room", missed)
	}
	p.must(op{Call: "close", Socket: owner})
	if left := n.connOrigins(); len(left) != len(after)-1 {
		t.Errorf("after the owner of a row closed, %d of %d rows are taken", len(left), len(after))
	}
}

// A process of one cgroup can use a socket of another. The root cgroup has kernel threads, whose
// sockets end without telling the programs, so sockets of the root cgroup take no row when they
// connect. Which programs run depends only on the socket's cgroup.
func TestTCPRecordFromTheTopmostCgroup(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, backends: back4[:1]})
	top := filepath.Dir(n.cgroup.Path())
	var info unix.Stat_t
	if err := unix.Stat(top, &info); err != nil {
		t.Fatal(err)
	}
	if info.Ino != 1 {
		rig.Lacking(t, "root", "the root cgroup is not visible here")
	}
	p := newClient(t, n)
	p.sockets++
	p.must(op{Call: "open", Socket: p.sockets, Addr: vip4, TCP: true})
	move := []byte(strconv.Itoa(p.process.Pid()))
	if err := os.WriteFile(filepath.Join(top, "cgroup.procs"), move, 0o600); err != nil {
		t.Fatal(err)
	}
	p.must(op{Call: "connect", Socket: p.sockets, Addr: vip4})
	if taken := n.connOrigins(); len(taken) != 0 {
		t.Errorf("it took a row: %+v", taken)
	}
	if have := p.peer(p.sockets); have != vip4 {
		t.Errorf("its peer is %s, want %s", have, vip4)
	}
}
