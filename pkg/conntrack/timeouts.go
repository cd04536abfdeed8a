package conntrack

import (
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Timeouts are how long a flow is kept after its last packet in either direction.
type Timeouts struct {
	TCPEstablished time.Duration
	TCPHalfClosed  time.Duration // one side has closed
	TCPClosing     time.Duration // both sides have closed
	TCPReset       time.Duration // one side has sent a reset
	TCPHalfOpen    time.Duration // the handshake is incomplete; counted from the last answer to the client
	UDPStream      time.Duration // after packets in both directions and one more
	UDP            time.Duration // all other UDP flows

	SCTPEstablished time.Duration
	SCTPClosing     time.Duration // one side has shut it down or aborted it
}

// sctpHalfOpen is how long an association may take to be established: a client retries after a
// second, then less often.
const sctpHalfOpen = 30 * time.Second

// Clock describes the programs' clock.
type Clock struct {
	Shift    uint32        // a tick is 2^Shift jiffies
	Duration time.Duration // of a tick
}

// limits returns the timeouts in ticks. A row records the tick it was last used in, so add one: no
// flow is deleted too early.
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
