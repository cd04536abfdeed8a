package conntrack

import (
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// The cost of judging one row, in a pass that finds nothing to delete and in one that also collects
// origins.
func BenchmarkScan(b *testing.B) {
	for _, gathers := range []bool{false, true} {
		name := "pass"
		if gathers {
			name = "purge"
		}
		b.Run(name, func(b *testing.B) {
			const n = 2048
			m := newMemory()
			for i := range n / 2 {
				client := maps.FlowSource(maps.Flow{Saddr: maps.Addr{Word: [4]uint32{0, 0, 0xffff0000, uint32(i)}}, Sport: 1})
				m.enter(false, client.String(), "10.1.0.1:53", model.UDP, maps.FlowOpen)
			}
			var keys []maps.Flow
			var rows []maps.FlowRow
			for key, row := range m.rows[0] {
				keys, rows = append(keys, key), append(rows, row)
			}
			c := newMemoryCollector()
			c.walk.now, c.walk.gathers = m.now, gathers
			b.ReportAllocs()
			for b.Loop() {
				c.walk.scanOpen(keys, rows, &c.limits)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/row")
		})
	}
}
