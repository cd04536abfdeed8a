package sockmap

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// uring is an instance of io_uring, for one request.
type uring struct {
	fd           int
	sq, cq, sqes []byte
	sqTail       *uint32
	array, cqes  uint32 // where they begin: the numbers of requests, and the results
	room         []byte // for data; it must not move, as what is on a goroutine's stack may
}

// As in linux/io_uring.h.
const (
	uringSubmissions = 0
	uringResults     = 0x8000000
	uringRequests    = 0x10000000
	uringGetEvents   = 1
	uringReceive     = 27
	uringRequestSize = 64
	uringResultSize  = 16
)

type uringParams struct {
	sqEntries, cqEntries, flags, sqCPU, sqIdle, features, wq uint32
	_                                                        [3]uint32
	sq                                                       struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

func newURing() (u *uring, err error) {
	params := uringParams{}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("set up io_uring: %w", errno)
	}
	u = &uring{fd: int(fd), array: params.sq.array, cqes: params.cq.cqes, room: make([]byte, 100)}
	for _, m := range []struct {
		to   *[]byte
		at   int64
		size uint32
	}{
		{&u.sq, uringSubmissions, params.sq.array + 4*params.sqEntries},
		{&u.cq, uringResults, params.cq.cqes + uringResultSize*params.cqEntries},
		{&u.sqes, uringRequests, uringRequestSize * params.sqEntries},
	} {
		if *m.to, err = unix.Mmap(u.fd, m.at, int(m.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
			return nil, errors.Join(fmt.Errorf("map io_uring: %w", err), u.close())
		}
	}
	u.sqTail = (*uint32)(unsafe.Pointer(&u.sq[params.sq.tail]))
	return u, nil
}

func (u *uring) close() error {
	var errs []error
	for _, m := range [][]byte{u.sq, u.cq, u.sqes} {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	return errors.Join(append(errs, unix.Close(u.fd))...)
}

// enter submits requests and waits for results.
func (u *uring) enter(submit, await uintptr) error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(u.fd), submit, await, uringGetEvents, 0, 0)
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return fmt.Errorf("enter io_uring: %w", errno)
		}
	}
}

// receive asks for data of a socket. It may come later.
func (u *uring) receive(fd int) error {
	at := unsafe.Pointer(&u.sqes[0])
	*(*uint8)(at) = uringReceive
	*(*int32)(unsafe.Add(at, 4)) = int32(fd)
	*(*uint64)(unsafe.Add(at, 16)) = uint64(uintptr(unsafe.Pointer(&u.room[0])))
	*(*uint32)(unsafe.Add(at, 24)) = uint32(len(u.room))
	*(*uint32)(unsafe.Pointer(&u.sq[u.array])) = 0
	atomic.AddUint32(u.sqTail, 1)
	return u.enter(1, 0)
}

// received waits for what was asked for, and returns it.
func (u *uring) received() ([]byte, error) {
	if err := u.enter(0, 1); err != nil {
		return nil, err
	}
	n := *(*int32)(unsafe.Pointer(&u.cq[u.cqes+8]))
	if n < 0 {
		return nil, fmt.Errorf("receive by io_uring: %w", unix.Errno(-n))
	}
	return u.room[:n], nil
}

// receiveByURing has the server ask for data by io_uring, before or after that has come.
func (e ends) receiveByURing(before bool) error {
	u, err := newURing()
	if err != nil {
		return err
	}
	defer u.close()
	return e.raw(func(fd int) error {
		if err := unix.SetNonblock(fd, false); err != nil { // or the request would fail instead of waiting
			return err
		}
		defer unix.SetNonblock(fd, true)
		message := pattern(3, 100)
		send := func() error {
			_, err := e.client.Write(message)
			return err
		}
		ask := func() error { return u.receive(fd) }
		first, second := send, ask
		if before {
			first, second = ask, send
		}
		if err := errors.Join(first(), second()); err != nil {
			return err
		}
		got, err := u.received()
		if err == nil && string(got) != string(message) {
			err = fmt.Errorf("%d bytes: %w", len(got), errWrong)
		}
		return err
	})
}
