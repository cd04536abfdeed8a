package sockets

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

var (
	vip  = netip.MustParseAddrPort("10.96.0.10:53")
	gone = netip.MustParseAddrPort("10.1.0.1:5353")
	here = netip.MustParseAddrPort("10.1.0.2:5353")
)

// socketTo returns a socket connected to remote.
func socketTo(cookie uint64, protocol model.Protocol, remote netip.AddrPort) Socket {
	s := Socket{Protocol: protocol, family: unix.AF_INET}
	binary.BigEndian.PutUint16(s.id[0:], uint16(40000+cookie))
	binary.BigEndian.PutUint16(s.id[2:], remote.Port())
	copy(s.id[20:], remote.Addr().AsSlice())
	binary.NativeEndian.PutUint32(s.id[40:], uint32(cookie))
	return s
}

func recordOf(dialed, backend netip.AddrPort) maps.SockOrigin {
	return maps.SockOrigin{
		Vip: maps.AddrOf(dialed.Addr()), VipPort: maps.PortOf(dialed.Port()),
		Backend: maps.AddrOf(backend.Addr()), BackendPort: maps.PortOf(backend.Port()),
	}
}

// kernel fakes a network namespace with the semantics of a real one, and the records of its
// sockets.
type kernel struct {
	mu      sync.Mutex
	sockets map[uint64]Socket
	records map[uint64]maps.SockOrigin // in socket storage
	rows    map[uint64]maps.SockOrigin // in a map
	aborted []uint64
	lacks   error
	slow    time.Duration // duration of a listing
	listed  []time.Time
	closed  bool
}

// with changes the kernel while nothing reads it.
func (k *kernel) with(change func(k *kernel)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k)
}

func (k *kernel) Check(model.Protocol) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lacks
}

func (k *kernel) Close() error {
	k.with(func(k *kernel) { k.closed = true })
	return nil
}

func (k *kernel) Destroy(s Socket) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sockets[s.Cookie()] != s {
		return false, nil
	}
	delete(k.sockets, s.Cookie())
	k.aborted = append(k.aborted, s.Cookie())
	return true, nil
}

func (k *kernel) Each(protocol model.Protocol, f func(Socket)) error {
	k.with(func(k *kernel) { k.listed = append(k.listed, time.Now()) })
	time.Sleep(k.slow)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.sockets {
		if s.Protocol == protocol {
			f(s)
		}
	}
	return nil
}

type records struct{ *kernel }

func (r records) Each(f func(uint64, maps.SockOrigin)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for cookie, record := range r.records {
		f(cookie, record)
	}
	return nil
}

func (r records) Row(cookie uint64) (maps.SockOrigin, bool, error) {
	record, ok := r.rows[cookie] // never changed during a test
	return record, ok, nil
}

// connect adds a socket and its record, as a program does for a client that connects to dialed.
func (k *kernel) connect(cookie uint64, protocol model.Protocol, dialed, backend netip.AddrPort) {
	k.sockets[cookie] = socketTo(cookie, protocol, backend)
	k.records[cookie] = recordOf(dialed, backend)
}

func newKernel() *kernel {
	return &kernel{sockets: map[uint64]Socket{}, records: map[uint64]maps.SockOrigin{}}
}

// sweeping runs a Sweeper over a kernel in a synctest bubble; judge decides which origins are stale.
func sweeping(t *testing.T, k *kernel, judge func(maps.Origin) bool, then func(s *Sweeper), protocols ...model.Protocol) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := NewSweeper(Config{
			Records: records{k}, Protocols: append(protocols, model.UDP), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Stale: func(_ context.Context, origins []maps.Origin) ([]bool, error) {
				stale := make([]bool, len(origins))
				for i := range origins {
					stale[i] = judge(origins[i])
				}
				return stale, nil
			},
		})
		if err := s.Add("node", k); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		then(s)
		cancel()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			t.Error(err)
		}
		if !k.closed {
			t.Error("the namespace is not closed")
		}
	})
}

func isGone(p maps.Origin) bool { return maps.BackendAddrPort(p.Backend) == gone }

func TestSweep(t *testing.T) {
	for _, test := range []struct {
		name      string
		protocols []model.Protocol
		make      func(k *kernel)
		meanwhile func(k *kernel) // between the two looks
		want      []uint64
	}{
		{"a backend is gone", nil, func(k *kernel) { k.connect(1, model.UDP, vip, gone) }, nil, []uint64{1}},
		{"a backend is here", nil, func(k *kernel) { k.connect(1, model.UDP, vip, here) }, nil, nil},
		{"no record", nil, func(k *kernel) { k.sockets[1] = socketTo(1, model.UDP, gone) }, nil, nil},
		{"no record, beside one that has one", nil, func(k *kernel) {
			k.sockets[1] = socketTo(1, model.UDP, gone)
			k.connect(2, model.UDP, vip, gone)
		}, nil, []uint64{2}},
		{"connected elsewhere since", nil, func(k *kernel) {
			k.connect(1, model.UDP, vip, gone)
			k.sockets[1] = socketTo(1, model.UDP, here)
		}, nil, nil},
		{"another port of the backend", nil, func(k *kernel) {
			k.connect(1, model.UDP, vip, gone)
			k.sockets[1] = socketTo(1, model.UDP, netip.AddrPortFrom(gone.Addr(), 1))
		}, nil, nil},
		{"connects anew between the looks", nil, func(k *kernel) { k.connect(1, model.UDP, vip, gone) },
			func(k *kernel) { k.connect(1, model.UDP, vip, here) }, nil},
		{"its record changes between the looks", nil, func(k *kernel) { k.connect(1, model.UDP, vip, gone) },
			func(k *kernel) { k.connect(1, model.UDP, netip.MustParseAddrPort("10.96.0.11:53"), gone) }, []uint64{1}},
		{"closes between the looks", nil, func(k *kernel) { k.connect(1, model.UDP, vip, gone) },
			func(k *kernel) { delete(k.sockets, 1) }, nil},
		{"connects late", nil, func(k *kernel) { k.connect(1, model.UDP, vip, here) },
			func(k *kernel) { k.connect(2, model.UDP, vip, gone) }, []uint64{2}},
		{"TCP that nobody asked for", nil, func(k *kernel) { k.connect(1, model.TCP, vip, gone) }, nil, nil},
		{"TCP", []model.Protocol{model.TCP}, func(k *kernel) { k.connect(1, model.TCP, vip, gone) }, nil, []uint64{1}},
		{"TCP with a row", []model.Protocol{model.TCP}, func(k *kernel) {
			k.sockets[1] = socketTo(1, model.TCP, gone)
			k.rows = map[uint64]maps.SockOrigin{1: recordOf(vip, gone)}
		}, nil, []uint64{1}},
		{"TCP with a row, and a record from before", []model.Protocol{model.TCP}, func(k *kernel) {
			k.connect(1, model.TCP, vip, gone)
			k.rows = map[uint64]maps.SockOrigin{1: recordOf(vip, here)}
		}, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newKernel()
			test.make(k)
			sweeping(t, k, isGone, func(s *Sweeper) {
				s.Left(model.UDP)
				time.Sleep(firstWait + secondWait/2)
				synctest.Wait()
				if test.meanwhile != nil {
					k.with(test.meanwhile)
				}
				time.Sleep(time.Second - firstWait - secondWait/2)
				synctest.Wait()
				if diff := cmp.Diff(test.want, k.aborted); diff != "" {
					t.Errorf("aborted within a second (-want +have):\n%s", diff)
				}
			}, test.protocols...)
		})
	}
}

// A backend that is gone at one look and back at the next does not count as gone.
func TestSweepBelievesTwice(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	k := newKernel()
	k.connect(1, model.UDP, vip, gone)
	sweeping(t, k, func(maps.Origin) bool { return away.Load() }, func(s *Sweeper) {
		s.Left(model.UDP)
		time.Sleep(firstWait + secondWait/2)
		synctest.Wait()
		away.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
	})
	if len(k.aborted) != 0 {
		t.Errorf("aborted %v", k.aborted)
	}
}

// Stale sockets are found within a minute even if Left is never called.
func TestSweepNowAndThen(t *testing.T) {
	k := newKernel()
	k.connect(1, model.UDP, vip, gone)
	sweeping(t, k, isGone, func(*Sweeper) {
		time.Sleep(every + time.Second)
		synctest.Wait()
	})
	if diff := cmp.Diff([]uint64{1}, k.aborted); diff != "" {
		t.Errorf("aborted (-want +have):\n%s", diff)
	}
}

// Backends that leave at the same time, of either protocol, cause a single sweep.
func TestSweepOnce(t *testing.T) {
	k := newKernel()
	k.connect(1, model.UDP, vip, here)
	sweeping(t, k, isGone, func(s *Sweeper) {
		for _, protocol := range []model.Protocol{model.UDP, model.TCP, model.UDP} {
			s.Left(protocol)
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if stats := s.Stats(); stats.Scans != 2 {
			t.Errorf("%d looks", stats.Scans)
		}
	}, model.TCP)
}

// However many backends leave, and however many sockets there are, looking takes a tenth of the
// time at most.
func TestSweepRests(t *testing.T) {
	k := newKernel()
	k.connect(1, model.UDP, vip, here)
	k.slow = 50 * time.Millisecond
	sweeping(t, k, isGone, func(s *Sweeper) {
		for range 10_000 {
			s.Left(model.UDP)
			time.Sleep(time.Millisecond)
		}
		k.with(func(k *kernel) { // two looks of 50 ms each, 200 ms between, a second of rest
			if n := len(k.listed); n < 14 || n > 18 {
				t.Errorf("%d looks in 10 s of 50 ms each", n)
			}
		})
	})
}

// An error of the kernel shows in the stats, and the Sweeper tries again.
func TestSweepUnsupported(t *testing.T) {
	k := newKernel()
	k.connect(1, model.UDP, vip, gone)
	k.lacks = ErrUnsupported
	sweeping(t, k, isGone, func(s *Sweeper) {
		s.Left(model.UDP)
		time.Sleep(time.Second)
		synctest.Wait()
		if stats := s.Stats(); stats.LastError == "" || stats.Errors == 0 || len(k.aborted) != 0 {
			t.Errorf("%+v, aborted %v", stats, k.aborted)
		}
		k.with(func(k *kernel) { k.lacks = nil }) // as if an administrator had loaded the module
		s.Left(model.UDP)
		time.Sleep(time.Second)
		synctest.Wait()
		if stats := s.Stats(); stats.LastError != "" || stats.Aborted[model.UDP] != 1 {
			t.Errorf("%+v", stats)
		}
	})
}

// Namespaces come and go at any time.
func TestSweepNamespaces(t *testing.T) {
	k, pod, second := newKernel(), newKernel(), newKernel()
	pod.sockets[7] = socketTo(7, model.UDP, gone)
	k.records[7] = recordOf(vip, gone)
	sweeping(t, k, isGone, func(s *Sweeper) {
		if err := errors.Join(s.Add("pod", pod), s.Add("pod", second)); err != nil {
			t.Fatal(err)
		}
		if !pod.closed {
			t.Error("the first of two is not closed")
		}
		s.Left(model.UDP)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(pod.aborted) != 0 || len(second.listed) == 0 {
			t.Errorf("aborted %v, listed %v", pod.aborted, second.listed)
		}
		if err := errors.Join(s.Remove("pod"), s.Remove("pod"), s.Add("again", pod)); err != nil {
			t.Fatal(err)
		}
		s.Left(model.UDP)
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]uint64{7}, pod.aborted); diff != "" || !second.closed {
			t.Errorf("closed %v, aborted (-want +have):\n%s", second.closed, diff)
		}
	})
}

// Endpoints that leave all the time, each with its own clients, do not increase the load, and every
// socket is aborted.
func TestSweepChurn(t *testing.T) {
	k := newKernel()
	k.slow = 20 * time.Millisecond
	sweeping(t, k, isGone, func(s *Sweeper) {
		for cookie := range uint64(1000) {
			k.with(func(k *kernel) { k.connect(cookie+1, model.UDP, vip, gone) })
			s.Left(model.UDP)
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		k.with(func(k *kernel) {
			if n := len(k.listed); n > 10_000/200 {
				t.Errorf("%d looks in 10 s of 20 ms each", n)
			}
		})
		time.Sleep(time.Second)
		synctest.Wait()
		if len(k.aborted) != 1000 {
			t.Errorf("%d of 1000 aborted", len(k.aborted))
		}
	})
}
