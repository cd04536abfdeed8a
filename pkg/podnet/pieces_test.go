package podnet

import "testing"

func TestPiecesSizes(t *testing.T) {
	for _, c := range []struct {
		rate uint64
		mtu  int
		want int
	}{
		{0, 1500, 0}, {125, 1500, 3512}, {125_000, 1500, 3512}, {2_500_000, 1500, 10_000}, {2_500_000, 9000, 18_512}, {16_383_999, 1500, 65_535}, {16_384_000, 1500, 0},
		{1 << 60 / 8, 1500, 0},
	} {
		if got := pieces(c.rate, c.mtu); got != c.want {
			t.Errorf("pieces(%d, %d) = %d, want %d", c.rate, c.mtu, got, c.want)
		}
	}
}
