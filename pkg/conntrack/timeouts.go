package conntrack

import (
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Timeouts are how long a flow is remembered after its last packet in either direction.
type Timeouts struct {
	TCPEstablished time.Duration
	TCPHalfClosed  time.Duration // one side has ended
	TCPClosing     time.Duration // both have
	TCPReset       time.Duration // one side has refused to go on
	TCPHalfOpen    time.Duration // since the last answer to a client that has not shown yet that it is there
	UDPStream      time.Duration // packets in both directions, and then another one
	UDP            time.Duration // any other

	SCTPEstablished time.Duration
	SCTPClosing     time.Duration // one side has shut it down, or aborted
}

// sctpHalfOpen is how long an association has to be established: a client tries again after a second, then after longer.
const sctpHalfOpen = 30 * time.Second

// Clock is how the programs tell the time.
type Clock struct {
	Shift    uint32        // a tick is 2^Shift jiffies
	Duration time.Duration // of a tick
}

// limits returns the timeouts in ticks. A row says in which tick it was used, so one more is added: nothing is
// forgotten too early.
func (t *Timeouts) limits(clock Clock) maps.FlowLimits {
	ticks := func(d time.Duration) uint32 { return uint32((d+clock.Duration-1)/clock.Duration) + 1 }
	var l maps.FlowLimits
	l[maps.ClassTCP] = [maps.Phases]uint32{
		maps.PhaseOpen: ticks(t.TCPEstablished), maps.PhaseHalfClosed: ticks(t.TCPHalfClosed),
		maps.PhaseClosed: ticks(t.TCPClosing), maps.PhaseReset: ticks(t.TCPReset), maps.PhaseHalfOpen: ticks(t.TCPHalfOpen),
	}
	stream, ended := ticks(t.UDPStream), ticks(t.SCTPClosing)
	l[maps.ClassUDP] = [maps.Phases]uint32{stream, stream, stream, stream, ticks(t.UDP)}
	l[maps.ClassSCTP] = [maps.Phases]uint32{ticks(t.SCTPEstablished), ended, ended, ended, ticks(sctpHalfOpen)}
	return l
}

func classOf(proto uint8) int {
	switch proto {
	case uint8(model.TCP):
		return maps.ClassTCP
	case uint8(model.SCTP):
		return maps.ClassSCTP
	}
	return maps.ClassUDP
}
