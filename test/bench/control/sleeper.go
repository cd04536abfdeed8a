package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/round"
)

// nap is how long the sleeper sleeps each time.
const nap = 500 * time.Microsecond

// sleeper is a process that only sleeps and notes how late it is woken: the agent cannot do better
// than that. It is a separate process because a sleeping goroutine also waits for Go's scheduler,
// which rounds up to a millisecond.
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

// end stops the sleeper and returns how late it was woken each time, in microseconds.
func (s *sleeper) end() ([]float64, error) {
	if err := s.stop.Close(); err != nil {
		return nil, fmt.Errorf("end the control process: %w", err)
	}
	if err := s.command.Wait(); err != nil {
		return nil, fmt.Errorf("end the control process: %w", err)
	}
	var all []float64
	for field := range strings.FieldsSeq(s.out.String()) {
		late, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return nil, fmt.Errorf("read what the control process measured: %w", err)
		}
		all = append(all, late)
	}
	if len(all) == 0 {
		return nil, errors.New("the control process was never woken")
	}
	return all, nil
}

// sleepARun lets a sleeper sleep for as long as the changes of a run take.
func sleepARun(ctx context.Context) (round.Sample, error) {
	s, err := startSleeper()
	if err != nil {
		return round.Sample{}, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(changesARun * nap):
	}
	late, err := s.end()
	return sampleOf(late), err
}

// sleep is the sleeper's loop, which runs until its input ends.
func sleep(in io.Reader, out io.Writer) error {
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		done <- err
	}()
	request := unix.NsecToTimespec(int64(nap))
	var late []float64
	for {
		select {
		case err := <-done:
			if err == nil {
				_, err = fmt.Fprintln(out, strings.Trim(fmt.Sprint(late), "[]"))
			}
			return err
		default:
		}
		start := time.Now()
		if err := unix.Nanosleep(&request, nil); err != nil {
			continue // a signal of Go's scheduler cut the nap short
		}
		late = append(late, micros(max(0, time.Since(start)-nap)))
	}
}
