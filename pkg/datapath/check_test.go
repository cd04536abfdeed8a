package datapath

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// finding is an Attachment as a child process reports it, and how many programs are attached
// afterward.
type finding struct {
	Proofs   []Proof
	Mended   uint64
	Err      string
	Attached int
}

// runCheck attaches, does the damage, checks twice, and prints both findings. Its arguments are the
// bpf filesystem, the cgroup to serve, and the damage.
func runCheck(args []string) error {
	d, err := Open(Config{BPFFS: args[0], CgroupRoot: args[1]})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := errors.Join(d.Create(maps.Sizes{}), d.Attach()); err != nil {
		return err
	}
	if err := damages()[args[2]](d); err != nil {
		return fmt.Errorf("%s: %w", args[2], err)
	}
	for range 2 {
		a := d.CheckAttachment()
		found := finding{Proofs: a.Proofs, Mended: a.Mended, Err: a.Error}
		status, err := d.Status()
		if err != nil {
			return err
		}
		for _, p := range status.Programs {
			if p.Attached {
				found.Attached++
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
			return err
		}
	}
	return nil
}

// passing returns a program that is not the agent's.
func passing(attach ebpf.AttachType) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: attach, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
}

// damages are things that can happen to an attachment behind an agent's back.
func damages() map[string]func(*Datapath) error {
	return map[string]func(*Datapath) error{
		"none":   func(*Datapath) error { return nil },
		"detach": func(d *Datapath) error { return d.links["sock_connect4"].Detach() },
		"detach all": func(d *Datapath) (err error) {
			for _, l := range d.links {
				err = errors.Join(err, l.Detach())
			}
			return err
		},
		"another program": func(d *Datapath) error {
			other, err := passing(ebpf.AttachCGroupInet6Connect)
			if err != nil {
				return err
			}
			defer other.Close()
			return d.links["sock_connect6"].Update(other)
		},
		"unpin": func(d *Datapath) error { return os.Remove(d.pins.link("sock_bind4")) },
		"another pin": func(d *Datapath) error {
			at := d.pins.link("sock_bind4")
			return errors.Join(os.Remove(at), os.Link(d.pins.link("sock_bind6"), at))
		},
		"foreign pin": func(d *Datapath) error {
			at := d.pins.link("sock_bind4")
			return errors.Join(os.Remove(at), os.Link(d.pins.mapPin("svcs"), at))
		},
		"directory for a pin": func(d *Datapath) error {
			at := d.pins.link("sock_bind4")
			return errors.Join(os.Remove(at), os.Mkdir(at, 0o700))
		},
		// To a dial, this looks like the programs of another agent instead of ours.
		"another agent": func(d *Datapath) error { d.token = newToken(); return nil },
		"no answers":    func(d *Datapath) error { d.token, d.features.CanRefuse = newToken(), false; return nil },
		"remove cgroup": func(d *Datapath) error { return os.Remove(d.cgroup.Path) },
		"recreate cgroup": func(d *Datapath) error {
			return errors.Join(os.Remove(d.cgroup.Path), os.Mkdir(d.cgroup.Path, 0o755))
		},
		"exclusive program": func(d *Datapath) error {
			other, err := passing(ebpf.AttachCGroupInet4Connect)
			if err != nil {
				return err
			}
			dir, err := os.Open(d.cgroup.Path)
			if err != nil {
				return err
			}
			// Both stay open until the process ends.
			return errors.Join(d.links["sock_connect4"].Detach(), link.RawAttachProgram(link.RawAttachProgramOptions{
				Target: int(dir.Fd()), Program: other, Attach: ebpf.AttachCGroupInet4Connect,
			}))
		},
	}
}

func proofs(v4, v6 ProofState) []Proof {
	return []Proof{{Family: "IPv4", State: v4}, {Family: "IPv6", State: v6}}
}

func TestCheckAttachment(t *testing.T) {
	all := len(hooks(t))
	for _, test := range []struct {
		damage        string
		outside       bool // the process is not below the cgroup
		below         bool // the cgroup is below that of the process
		first, second finding
		why           string // in the proofs of the first finding
	}{
		{damage: "none", first: finding{proofs(Proven, Proven), 0, "", all}},
		{damage: "detach", first: finding{proofs(Proven, Proven), 1, "", all}},
		{damage: "detach all", first: finding{proofs(Proven, Proven), uint64(all), "", all}},
		{damage: "another program", first: finding{proofs(Proven, Proven), 1, "", all}},
		{damage: "unpin", first: finding{proofs(Proven, Proven), 1, "", all}},
		{damage: "another pin", first: finding{proofs(Proven, Proven), 1, "", all}},
		{damage: "foreign pin", first: finding{proofs(Proven, Proven), 1, "", all}},
		{damage: "directory for a pin", first: finding{proofs(Proven, Proven), 1, "", all}},
		{damage: "another agent", first: finding{proofs(Missed, Missed), 0, "", all}, why: "network is unreachable"},
		{damage: "no answers", first: finding{proofs(Unknown, Unknown), 0, "", all}, why: "does not let programs answer"},
		{damage: "exclusive program", first: finding{proofs(Missed, Proven), 0, "attach program sock_connect4", all - 1}},
		{damage: "none", outside: true, first: finding{proofs(Unknown, Unknown), 0, "", all}, why: "is not below"},
		{damage: "none", below: true, first: finding{proofs(Unknown, Unknown), 0, "", all}, why: "is not below"},
		{damage: "recreate cgroup", below: true, first: finding{proofs(Unknown, Unknown), uint64(all), "", all}},
		{damage: "remove cgroup", below: true, first: finding{proofs(Unknown, Unknown), 0, "no such file", 0}},
	} {
		t.Run(test.damage, func(t *testing.T) {
			p := newMounts(t)
			served, in := p.CgroupRoot, p.cgroup
			if test.outside {
				in = rig.NewCgroup(t)
			}
			if test.below {
				served = filepath.Join(served, "below")
				if err := os.Mkdir(served, 0o755); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.Remove(served) })
			}
			out := rig.Child(t, in, rig.NewNetns(t, "agent"), "check", p.BPFFS, served, test.damage)
			decoder := json.NewDecoder(strings.NewReader(out))
			for i := range 2 {
				var got finding
				if err := decoder.Decode(&got); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				// Nothing is repaired twice.
				checkFinding(t, got, test.first, test.why, i)
			}
		})
	}
}

func checkFinding(t *testing.T, got, want finding, why string, round int) {
	t.Helper()
	if (got.Err == "") != (want.Err == "") || !strings.Contains(got.Err, want.Err) {
		t.Errorf("check %d: error %q, want %q", round, got.Err, want.Err)
	}
	for i, p := range got.Proofs {
		if (p.State == Proven) != (p.Why == "") || p.State != Proven && !strings.Contains(p.Why, why) {
			t.Errorf("check %d: %+v, want it to say %q", round, p, why)
		}
		got.Proofs[i].Why = ""
	}
	got.Err, want.Err = "", ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("check %d (-want +got):\n%s", round, diff)
	}
}

// A node that lacks an address family does not count as one whose programs do not work.
func TestProofOfFamily(t *testing.T) {
	d := &cgroupLinks{features: Features{CanRefuse: true}}
	if state, why := d.proofState(unix.EAFNOSUPPORT); state != Absent || why == "" {
		t.Errorf("%s, %q", state, why)
	}
}

func TestToken(t *testing.T) {
	for token := range map[token]bool{newToken(): true, newToken(): true, 0x0807060504030201: true} {
		v4, v6 := token.addr4().(*unix.SockaddrInet4), token.addr6().(*unix.SockaddrInet6)
		if v4.Port == 0 || v4.Port != v6.Port || v4.Addr != [4]byte{192, 0, 0, 8} ||
			!netip.MustParsePrefix("100::/64").Contains(netip.AddrFrom16(v6.Addr)) || !bytes.Equal(v6.Addr[8:], token.bytes()) {
			t.Errorf("%x: %+v, %+v", uint64(token), v4, v6)
		}
	}
}

// runDial makes the test dials without any programs, and fails if that sends anything.
func runDial([]string) error {
	before, err := sent()
	if err != nil {
		return err
	}
	token := newToken()
	for _, err := range []error{dialProbe(unix.AF_INET, token.addr4()), dialProbe(unix.AF_INET6, token.addr6())} {
		if err != nil {
			return fmt.Errorf("dial although there is a route: %w", err)
		}
	}
	after, err := sent()
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("the dials sent packets: the counters are %+v, before %+v", after, before)
	}
	asked, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	for _, neighbor := range asked {
		if neighbor.State&netlink.NUD_NOARP == 0 {
			err = errors.Join(err, fmt.Errorf("the dials resolved neighbor %s", neighbor.IP))
		}
	}
	return err
}

// sent returns how many IPv4 bytes, and IPv6 UDP packets, this namespace has sent.
func sent() (counts [2]int, err error) {
	for i, source := range []struct{ file, name string }{{"netstat", "OutOctets"}, {"snmp6", "Udp6OutDatagrams"}} {
		text, err := os.ReadFile("/proc/thread-self/net/" + source.file)
		if err != nil {
			return counts, err
		}
		var names []string
		found := false
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			at := slices.Index(names, source.name)
			if fields[0] == source.name {
				at, names = 1, fields
			}
			if at > 0 && fields[0] == names[0] {
				found = true
				if counts[i], err = strconv.Atoi(fields[at]); err != nil {
					return counts, err
				}
				break
			}
			names = fields
		}
		if !found {
			return counts, fmt.Errorf("%s has no %s", source.file, source.name)
		}
	}
	return counts, nil
}

// If no program answers, the dials find a route and still send nothing.
func TestDialSendsNothing(t *testing.T) {
	rig.Root(t)
	ns, gateway := rig.NewNetns(t, "agent"), rig.NewNetns(t, "gateway")
	rig.Veth(t, ns, "out", gateway, "in")
	rig.Address(t, ns, "out", "198.51.100.1/24", "2001:db8::1/64")
	rig.Route(t, ns, "0.0.0.0/0", "198.51.100.2")
	rig.Route(t, ns, "::/0", "2001:db8::2")
	rig.Child(t, nil, ns, "dial")
}
