package lb

import (
	"crypto/sha512"
	"encoding/binary"
	"net/netip"
)

// HashKeys are the secret that the BPF programs mix into flow hashes. All nodes need the same keys,
// so that they choose the same backends. Somebody who does not know the keys cannot craft flows
// that all hit one backend.
type HashKeys [5]uint64

// NewHashKeys derives the keys from a seed. An empty seed gives zero keys.
func NewHashKeys(seed string) (keys HashKeys) {
	if seed == "" {
		return keys
	}
	sum := sha512.Sum512([]byte("fairlead hash of flows\n" + seed))
	for i := range keys {
		keys[i] = binary.LittleEndian.Uint64(sum[8*i:])
	}
	return keys
}

// numberFactors are the constants that keys are mixed with. The programs have the same.
func numberFactors() HashKeys {
	return HashKeys{0xe1454c40c439f34b, 0x26b563b1e794ee15, 0xac8be7d742840d2b, 0xe7ca430e92ac3d43, 0x1333bc1cfe6c2b03}
}

// Flow returns the hash of a flow from outside to a port, as the programs compute it. The slot is
// the hash modulo the length of the table.
func (k *HashKeys) Flow(client netip.AddrPort, port uint16) uint32 {
	var ports [4]byte
	binary.BigEndian.PutUint16(ports[0:], client.Port())
	binary.BigEndian.PutUint16(ports[2:], port)
	return k.number(client.Addr(), binary.LittleEndian.Uint32(ports[:]))
}

// Client returns the hash of every flow of a client where only its address counts.
func (k *HashKeys) Client(client netip.Addr) uint32 { return k.number(client, 0) }

func (k *HashKeys) number(client netip.Addr, ports uint32) uint32 {
	addr, factors := client.As16(), numberFactors()
	sum := uint64(ports) * (k[4] ^ factors[4])
	for i := range 4 {
		sum += uint64(binary.LittleEndian.Uint32(addr[4*i:])) * (k[i] ^ factors[i])
	}
	sum = (sum ^ sum>>32) * 0x9e3779b97f4a7c15
	return uint32((sum ^ sum>>32) >> 32)
}
