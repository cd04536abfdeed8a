package cni

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// socketPair returns two ends that are connected.
func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	end := func(fd int) *net.UnixConn {
		file := os.NewFile(uintptr(fd), "end")
		defer file.Close()
		conn, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn.(*net.UnixConn)
	}
	return end(fds[0]), end(fds[1])
}

// received returns what receive makes of bytes.
func received(t *testing.T, raw []byte) (*Request, error) {
	t.Helper()
	here, there := socketPair(t)
	go func() {
		_, _ = there.Write(raw) // the reader may have given up
		there.Close()
	}()
	request := &Request{}
	file, err := receive(here, request)
	if file != nil {
		file.Close()
		t.Error("bytes without a file brought one")
	}
	here.Close()
	return request, err
}

// Whatever arrives at the socket, reading and checking it does not panic, and a request that passes
// the checks stays within the bounds, names a device that is the attachment's, and is the same when
// it is sent on.
func FuzzRequest(f *testing.F) {
	seed, err := json.Marshal(request())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, true)
	f.Add([]byte(`{"verb":"collect","attachment":{"network":"pods"},"valid":[{"network":"pods","container":"c","ifname":"eth0"}]}`), true)
	f.Add([]byte(`{"verb":"allocate","attachment":{"network":"p","container":"c","ifname":"eth0"},"addresses":["10.1.0.1","::ffff:10.1.0.1","fe80::1%eth0",""]}`), true)
	f.Add([]byte(`{"verb":"register","attachment":{"network":"p","container":"c","ifname":"../x"},"device":null}`), true)
	f.Add([]byte(`{"verb":"status"} {"verb":"status"}`), true)
	f.Add([]byte{0, 0, 0, 2, '{', '}'}, false)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'}, false)
	f.Add([]byte{0, 0}, false)
	f.Fuzz(func(t *testing.T, raw []byte, framed bool) {
		if framed {
			raw = append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
		}
		got, err := received(t, raw)
		if err != nil || got.Validate() != nil {
			return
		}
		if len(got.Addresses) > mostAddresses && got.Verb != Status && got.Verb != Collect {
			t.Errorf("%d addresses pass", len(got.Addresses))
		}
		if !IsDevice(got.Attachment.Device()) {
			t.Errorf("device %q", got.Attachment.Device())
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := received(t, append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
		if err != nil {
			t.Fatalf("sent on: %v", err)
		}
		if other, err := json.Marshal(again); err != nil || !bytes.Equal(text, other) {
			t.Errorf("sent on: %s became %s, %v", text, other, err)
		}
	})
}
