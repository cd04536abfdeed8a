package minimal

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/test/bench/minimal/limited"
)

// Judge forwards packets between two pods of a node whose policies accept them: each end tracks the flow,
// and asks policies about its first packet.
type Judge struct {
	From, To netip.Addr
	Port     uint16 // the only one that is accepted
	Ifindex  int    // of the receiver
	Flows    int    // number of rows; each flow needs two
	// EveryPacket makes both ends ask policies about each packet.
	EveryPacket bool
}

// JudgeProgram is the loaded program of a Judge.
type JudgeProgram struct {
	Attached
	Program *ebpf.Program
}

// Load loads the program.
func (j Judge) Load() (*JudgeProgram, error) {
	spec, err := loadJudge()
	if err != nil {
		return nil, fmt.Errorf("read judge: %w", err)
	}
	for name, value := range map[string]any{"every_packet": j.EveryPacket, "ifindex": uint32(j.Ifindex)} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	spec.Maps["judge_flows"].MaxEntries = uint32(j.Flows)
	p := &JudgeProgram{}
	err = limited.Do(func() error {
		collection, err := ebpf.NewCollection(spec)
		if err != nil {
			return fmt.Errorf("load judge: %w", err)
		}
		p.own(closer(collection.Close))
		p.Program = collection.Programs["tc_judge"]
		return j.fill(collection)
	})
	if err != nil {
		_ = p.Close() // the first error matters
		return nil, err
	}
	return p, nil
}

// fill writes who the ends are, and that the sender may do anything, the receiver only be asked at the port.
func (j Judge) fill(c *ebpf.Collection) error {
	const sender, receiver, udp = 1, 2, 17
	for addr, identity := range map[netip.Addr]uint32{j.From: sender, j.To: receiver} {
		wide := words(netip.AddrFrom16(addr.As16()))
		if err := c.Maps["judge_identities"].Put(judgeJudgePrefix{Len: 128, Addr: wide}, identity); err != nil {
			return err
		}
	}
	may := uint32(1)
	for _, rule := range []judgeJudgeRule{
		{Identity: receiver, Proto: udp, End: 0}, {Identity: sender, Proto: udp, Port: order16(j.Port), End: 1},
	} {
		if err := c.Maps["judge_rules"].Put(rule, may); err != nil {
			return err
		}
	}
	return nil
}
