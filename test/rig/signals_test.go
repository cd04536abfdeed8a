package rig

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A signal interrupts a blocking call on an ordinary thread, and not inside WithoutSignals.
func TestWithoutSignals(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, stop, stopped := unix.Gettid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if err := unix.Tgkill(os.Getpid(), thread, unix.SIGURG); err != nil {
					t.Errorf("send signal: %v", err)
				}
			}
		}
	}()
	wait := func() error {
		_, err := unix.Poll(nil, 200)
		return err
	}
	if err := wait(); !errors.Is(err, unix.EINTR) {
		t.Errorf("an ordinary thread, which gets signals: %v", err)
	}
	if err := WithoutSignals(wait); err != nil {
		t.Errorf("a thread without signals: %v", err)
	}
	if err := wait(); !errors.Is(err, unix.EINTR) {
		t.Errorf("the thread afterwards: %v", err)
	}
	close(stop)
	<-stopped
}
