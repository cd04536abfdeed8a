package podnet

import "time"

// pieceTime is for how long one packet may hold up the others of a rate-limited pod.
const pieceTime = 4 * time.Millisecond

// pieces returns the largest TCP packet that a pod with a rate, in bytes a second, should send, or
// 0 for no limit. It is never less than two full segments and the room that the kernel reserves for
// headers, since smaller ones would cost more than they have to.
func pieces(rate uint64, mtu int) int {
	const headers, usual = 512, 1 << 16
	size := max(rate/uint64(time.Second/pieceTime), uint64(2*mtu+headers))
	if rate == 0 || size >= usual {
		return 0
	}
	return int(size)
}
