package sockmap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// callNumbers are the system call numbers of an architecture.
type callNumbers struct {
	reads, writes                [2]uint64
	recv, recvmsg, send, sendmsg uint64
	splices                      [3]uint64
}

// Limits define which connections count as conversations, and how much data may wait past TCP.
type Limits struct {
	Blocking bool   // sockets with blocking reads may bypass TCP too, although a signal ends such a read with EAGAIN
	Turns    uint32 // how often the reader must have changed
	Budget   uint32 // bytes that may wait, per direction
	Run      uint32 // messages in a row from one side that bypass TCP
	Stream   uint32 // after this many, the sockets leave the map
	// DrainingReaders says that readers by edge-triggered epoll are known to look again until nothing is left.
	// They then need not show it.
	DrainingReaders bool
	// Show is how long each side may send nothing by TCP. Without it, netfilter and the agent would
	// take the connection for idle.
	Show time.Duration
	// Except are the names of programs that must not read past TCP, as the kernel has them: the
	// first 15 bytes.
	Except []string
}

// DefaultLimits returns the limits of an agent without options.
func DefaultLimits() Limits {
	return Limits{Turns: 8, Budget: 256 << 10, Run: 16, Stream: 256, Show: time.Minute}
}

func (l Limits) check() error {
	if l.Turns == 0 || l.Budget == 0 || l.Run == 0 || l.Stream < l.Run || l.Show <= 0 {
		return fmt.Errorf("check limits of conversations %+v: none may be zero, and stream must not be below run", l)
	}
	if len(l.Except) > mostExcept {
		return fmt.Errorf("check limits of conversations: %d programs are excepted, at most %d can be",
			len(l.Except), mostExcept)
	}
	for _, name := range l.Except {
		if name == "" || len(name) > nameLength {
			return fmt.Errorf("check limits of conversations: %q is not a program name of 1 to %d bytes", name, nameLength)
		}
	}
	return nil
}

const (
	mostExcept = 64
	nameLength = 15
)

// except writes the names of excepted programs into their map.
func except(m *ebpf.Map, names []string) error {
	for _, name := range names {
		var key bpf.SockmapProgramName
		for i, c := range []byte(name) {
			key.Text[i] = int8(c)
		}
		if err := m.Put(key, uint32(1)); err != nil {
			return fmt.Errorf("except program %s: %w", name, err)
		}
	}
	return nil
}

func (l Limits) settings() bpf.SockmapSettings {
	s := bpf.SockmapSettings{
		Reads: calls.reads, Writes: calls.writes, Recv: calls.recv, Recvmsg: calls.recvmsg, Send: calls.send, Sendmsg: calls.sendmsg,
		Splices: calls.splices, Turns: uint64(l.Turns), Budget: uint64(l.Budget), Run: uint64(l.Run), Stream: uint64(l.Stream), Show: uint64(l.Show) >> 20,
	}
	if l.Blocking {
		s.Blocking = 1
	}
	if l.DrainingReaders {
		s.Looks = 1
	}
	return s
}

// set writes the settings into the programs.
func (l Limits) set(spec *ebpf.CollectionSpec) ([]byte, error) {
	variable := spec.Variables["cfg"]
	if variable == nil {
		return nil, errors.New("set limits of conversations: the object has no cfg")
	}
	var value bytes.Buffer
	if err := binary.Write(&value, binary.NativeEndian, l.settings()); err != nil {
		return nil, fmt.Errorf("set limits of conversations: %w", err)
	}
	if err := variable.Set(value.Bytes()); err != nil {
		return nil, fmt.Errorf("set limits of conversations: %w", err)
	}
	return value.Bytes(), nil
}
