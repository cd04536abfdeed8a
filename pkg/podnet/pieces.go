package podnet

import "time"

// pieceTime is for how long one packet may have others wait of a pod that is kept to a rate.
const pieceTime = 4 * time.Millisecond

// pieces returns how large packets of TCP may be at the most that a pod sends with a rate of so many bytes a second; 0 for as large as any. With two
// full segments, and the room for headers that the kernel keeps, they cost no more than they have to.
func pieces(rate uint64, mtu int) int {
	const headers, usual = 512, 1 << 16
	size := max(rate/uint64(time.Second/pieceTime), uint64(2*mtu+headers))
	if rate == 0 || size >= usual {
		return 0
	}
	return int(size)
}
