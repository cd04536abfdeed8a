package snapshot

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/tables"
)

func TestCheck(t *testing.T) {
	key := func(addr string, proto model.Protocol) maps.SvcKey {
		return maps.KeyOf(netip.MustParseAddr(addr), 80, proto)
	}
	for _, tt := range []struct {
		name   string
		damage func(l *tables.Layout, index uint32)
		want   string // part of one of the findings
	}{
		{"slot of another service", func(l *tables.Layout, _ uint32) { l.Slots[1] = maps.MakeSlot(0, 9, 1) }, "slot 1 belongs to service 9"},
		{"slot with another tag", func(l *tables.Layout, i uint32) { l.Slots[0] = maps.MakeSlot(0, i, 77) }, "slot 0 belongs to service 1, tag 77"},
		{"backend outside", func(l *tables.Layout, i uint32) { l.Slots[0] = maps.MakeSlot(60000, i, 1) }, "leads to backend 60000, outside"},
		{"backend never written", func(l *tables.Layout, i uint32) { l.Slots[0] = maps.MakeSlot(50, i, 1) }, "leads to backend 50, which was never written"},
		{"extent outside", func(l *tables.Layout, i uint32) { l.Services[i].Words[0] = uint64(maps.MakeWord(1<<31, 65535, 1)) }, "lie outside the map"},
		{"overlap", func(l *tables.Layout, i uint32) {
			l.Services[i].Words[1] = l.Services[i].Words[0]
		}, "slots 0 to 1 are claimed by shop/web:http/tcp4, scope all and by shop/web:http/tcp4, scope local"},
		{"no such service", func(l *tables.Layout, _ uint32) { l.Frontends[key("10.96.0.99", model.TCP)] = maps.Svc{Service: 40} },
			"frontend 10.96.0.99:80/tcp leads to service 40, which does not exist"},
		{"service outside", func(l *tables.Layout, _ uint32) {
			l.Frontends[key("10.96.0.99", model.TCP)] = maps.Svc{Service: 1 << 31}
		},
			"leads to service 2147483648"},
		{"no name", func(l *tables.Layout, i uint32) { l.Names[i] = maps.NameText{} }, "service 1 has frontends or slots, but no name"},
		{"two of a name", func(l *tables.Layout, _ uint32) { l.Add(tables.Wants{Name: "shop/web:http/tcp4"}) }, "are both named shop/web:http/tcp4"},
		{"service 0", func(l *tables.Layout, _ uint32) { l.NextService = 0; l.Add(tables.Wants{Name: "a/b/tcp4"}) }, "service 0 is in use"},
		{"frontends of two protocols", func(l *tables.Layout, i uint32) { l.Frontends[key("10.96.0.99", model.UDP)] = maps.Svc{Service: i} },
			"has frontends of"},
		{"backend of another protocol", func(l *tables.Layout, _ uint32) { l.Backends[0].Proto = 17 }, "backend 10.1.0.1:8080 is udp, the frontends are tcp"},
		{"one backend twice", func(l *tables.Layout, _ uint32) { l.Backends[1] = l.Backends[0] }, "backend 10.1.0.1:8080/tcp of shop/web:http/tcp4 has two rows, 0 and 1"},
		{"backend of another service", func(l *tables.Layout, _ uint32) { l.Backends[1].Owner = maps.MakeOwner(9, 1) }, "leads to backend 1, which belongs to service 9"},
		{"backend of another scope", func(l *tables.Layout, i uint32) { l.Backends[1].Owner = maps.MakeOwner(i, 2) }, "leads to backend 1, which is not marked for the scope"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := tables.NewLayout()
			index := l.Add(tables.Shop()[0])
			tt.damage(l, index)
			s := take(t, l)
			found := Check(s)
			if !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, tt.want) }) {
				t.Errorf("found %q, want %q", found, tt.want)
			}
			for i := range s.Services {
				if err := s.WriteService(io.Discard, &s.Services[i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestTakeDuringWrites reads while a writer moves two services from extent to extent, each reusing
// at once what the other freed. Every service that stands still in a snapshot must be sound and
// complete.
func TestTakeDuringWrites(t *testing.T) {
	l := tables.NewLayout()
	first := l.Add(tables.Wants{Name: "a/one/tcp4", All: []string{"10.1.0.1:1", "10.1.0.2:1"}})
	second := l.Add(tables.Wants{Name: "a/two/tcp4", All: []string{"10.1.0.3:1", "10.1.0.4:1"}})
	var stop atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		free := uint32(4)
		for tag := uint16(10); !stop.Load(); tag++ {
			for i, index := range []uint32{first, second} {
				word := &l.Services[index].Words[maps.ScopeAll]
				for slot := range uint32(2) {
					value := maps.MakeSlot(uint32(2*i)+slot, index, tag).Value
					atomic.StoreUint64(&l.Slots[free+slot].Value, value)
				}
				was := maps.Word(*word)
				atomic.StoreUint64(word, uint64(maps.MakeWord(free, 2, tag)))
				free = was.Off()
			}
		}
	})
	steady := 0
	for range 3000 {
		s := take(t, l)
		if found := Check(s); len(found) > 0 {
			t.Errorf("concurrent writes are reported as damage: %q", found)
			break
		}
		for _, service := range s.Services {
			if service.All.Changing {
				continue
			}
			steady++
			if len(service.All.Backends) != 2 {
				t.Errorf("%s has %v", service.Name, service.All.Backends)
			}
		}
	}
	stop.Store(true)
	writer.Wait()
	if steady == 0 {
		t.Error("no service ever stood still: the test proves nothing")
	}
}

// churn returns other rows at the second listing, like a map that is written meanwhile.
type churn struct {
	listings []tables.Rows
	err      error
}

func (c *churn) Each(visit func(maps.SvcKey, maps.Svc)) error {
	if c.err != nil {
		return c.err
	}
	now := c.listings[0]
	if len(c.listings) > 1 {
		c.listings = c.listings[1:]
	}
	return now.Each(visit)
}

func TestTakeForgivesRowsThatGo(t *testing.T) {
	l := tables.NewLayout()
	index := l.Add(tables.Shop()[0])
	stale := tables.Rows{maps.KeyOf(netip.MustParseAddr("10.96.0.99"), 80, model.TCP): {Service: 30}}
	listed := tablesIn(l)
	listed.Frontends = &churn{listings: []tables.Rows{stale, l.Frontends}}
	s, err := Take(listed)
	if err != nil {
		t.Fatal(err)
	}
	if found := Check(s); len(found) > 0 {
		t.Errorf("a row that went meanwhile is reported as damage: %q", found)
	}
	if got := s.Services[0]; got.Index != index || len(got.Frontends) != 2 {
		t.Errorf("service %d has %d frontends", got.Index, len(got.Frontends))
	}
}

func TestTakeReportsListingErrors(t *testing.T) {
	l := tables.NewLayout()
	listed := tablesIn(l)
	listed.Frontends = &churn{err: errors.New("no access")}
	if _, err := Take(listed); err == nil {
		t.Error("Take did not return the error of the listing")
	}
}
