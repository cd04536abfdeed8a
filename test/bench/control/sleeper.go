package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper is a process that only sleeps and notes how late it is woken: no tail below that is ours to shorten. It is
// a process of its own because a sleeping goroutine waits for Go's scheduler as well, which rounds up to a millisecond.
type sleeper struct {
	command *exec.Cmd
	stop    io.Closer
	out     strings.Builder
}

func startSleeper() (*sleeper, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start the control process: %w", err)
	}
	s := &sleeper{command: exec.Command(self, "-sleep")}
	s.command.Stdout, s.command.Stderr = &s.out, os.Stderr
	if s.stop, err = s.command.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start the control process: %w", err)
	}
	if err := s.command.Start(); err != nil {
		return nil, fmt.Errorf("start the control process: %w", err)
	}
	return s, nil
}

// p99 ends the sleeper and returns how late it was woken at the 99th percentile, in microseconds.
func (s *sleeper) p99() (float64, error) {
	if err := s.stop.Close(); err != nil {
		return 0, fmt.Errorf("end the control process: %w", err)
	}
	if err := s.command.Wait(); err != nil {
		return 0, fmt.Errorf("end the control process: %w", err)
	}
	late, err := strconv.ParseFloat(strings.TrimSpace(s.out.String()), 64)
	if err != nil {
		return 0, fmt.Errorf("read what the control process measured: %w", err)
	}
	return late, nil
}

// sleep is what the sleeper does until its input ends.
func sleep(in io.Reader, out io.Writer) error {
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		done <- err
	}()
	nap := unix.NsecToTimespec(int64(500 * time.Microsecond))
	var late []float64
	for {
		select {
		case err := <-done:
			if err == nil {
				_, err = fmt.Fprintln(out, quantile(late, 0.99))
			}
			return err
		default:
		}
		start := time.Now()
		if err := unix.Nanosleep(&nap, nil); err != nil {
			continue // a signal of Go's scheduler; the nap was cut short
		}
		late = append(late, float64((time.Since(start)-time.Duration(nap.Nano())).Nanoseconds())/1e3)
	}
}
