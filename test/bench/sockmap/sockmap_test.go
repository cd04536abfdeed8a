package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, funcs())) }

func TestParse(t *testing.T) {
	for args, fails := range map[string]string{
		"": "", "-sizes=1,65536": "", "-effort=0": "does nothing", "-sizes=0": "not a size", "-sizes=1,": "not a size", "more": "unexpected argument",
	} {
		_, err := parse(strings.Fields(args))
		if (fails == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), fails) {
			t.Errorf("%q: have error %v, want %q", args, err, fails)
		}
	}
}

// build builds the programs and returns their folder.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/", "fairlead.io/fairlead/cmd/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
}

func TestBench(t *testing.T) {
	rig.MapIterators(t)
	rig.NoLeaks(t)
	binaries := build(t)
	t.Run("refusals", func(t *testing.T) { testRefusals(t, binaries) })
	t.Run("rows", func(t *testing.T) { testRows(t, binaries) })
}

// A figure is rejected unless the messages took the path that its name says.
func testRefusals(t *testing.T, binaries string) {
	s, err := newTwoNodesTwoPods(t.Context(), binaries)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	all, few := s.all, job{64, 200}
	nobody := map[sockmap.Endpoint]sockmap.Rules{}
	for _, tt := range []struct {
		what  string
		rules map[sockmap.Endpoint]sockmap.Rules
		off   bool
		run   func(p *endpoints) error
		want  string
	}{
		{"as they should be", all, false, func(p *endpoints) error { return s.once(t, p, on, requests, few) }, ""},
		{"nobody is let", nobody, false, func(p *endpoints) error { return s.once(t, p, on, requests, few) }, "did not become accelerated"},
		{"all are off meanwhile", all, true, func(p *endpoints) error {
			c, err := s.connect(p, on, cores()[0], epoll)
			if err == nil {
				err = c.converse(few.size)
			}
			if err == nil {
				err = s.Switch(false)
			}
			if err == nil {
				_, err = c.proven(func() (both, error) { return c.ask(few.count, few.size) }, c.wentItsWay(few))
			}
			return err
		}, "went past TCP, want"},
		{"a stream is none", all, false, func(p *endpoints) error {
			c, err := s.connect(p, on, cores()[0], epoll)
			if err == nil {
				err = c.converse(few.size)
			}
			if err == nil {
				_, err = streams(c, few)
			}
			return err
		}, "bypasses TCP: "},
	} {
		places, err := s.places()
		if err != nil {
			t.Fatal(err)
		}
		s.all = tt.rules
		// A connection that nobody lets be accelerated is waited for in vain.
		s.patience = patience
		if len(tt.rules) == 0 {
			s.patience = 500 * time.Millisecond
		}
		for _, where := range []string{loopback, pods} {
			if err := tt.run(places[where]); (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s, %s: have error %v, want %q", tt.what, where, err, tt.want)
			}
			places[where].stop()
			if tt.off {
				break // the client is gone
			}
			if places, err = s.places(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Switch(true); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *twoNodesTwoPods) once(t *testing.T, p *endpoints, m mode, f traffic, j job) error {
	_, err := s.variant(p, m, cores()[0], epoll, f, j).Run(context.WithoutCancel(t.Context()))
	return err
}

// A short run has all kinds of rows, whatever their figures.
func testRows(t *testing.T, binaries string) {
	path := filepath.Join(t.TempDir(), "sockmap.json")
	args := []string{"-binaries=" + binaries, "-output=" + path, "-rounds=9", "-effort=0.002", "-sizes=64"}
	for _, only := range []string{
		"request, loopback, 64 B, epoll, same", "request, pods, 64 B, epoll", "request, " + stacked + ", 64 B, blocking, same", "stream, pods, 64 B, epoll, same",
		"at once, pods, 64 B, epoll, same", "both directions, pods, 64 B, epoll, same", "64 messages, pods, 64 B, epoll, same", "later, loopback, 64 B, epoll, same", "close, pods", "programs", "16 connections, same core",
		"pure proxy, 64 B requests", "64 KiB of a stream", "hazards", "until it is out of the map, 65536",
	} {
		args = append(args, "-only="+only)
	}
	if err := run(t.Context(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []result.Row
	if err := json.Unmarshal(content, &rows); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, row := range rows {
		found[row.Row]++
	}
	ways := len(relayWays()) - 1
	for name, want := range map[string]int{
		"request, loopback": 2, "request, pods": 2 * len(cores()), "request, " + stacked: 2, "request, pods, bare minimum": 2 * len(cores()),
		"request, pods, by TCP, in the map": 2 * len(cores()), "stream, pods": 2, "stream after a conversation, at once, pods": 2,
		"stream after a conversation, at once, pods, by TCP, in the map": 2, "stream after a conversation, later, loopback": 2, "streams in both directions, pods": 2, "requests answered in 64 messages, pods": 2, "connect, request, close, pods": len(cores()) * 3,
		"connect, request, close, pods, taking no part": len(cores()) * 3, "request, pods, Unix socket": 2 * len(cores()), "stream after a conversation, until it is out of the map": 2,
		"proxied requests, 2000 a second of 16 KiB": 2, "proxied requests, 2000 a second of 16 KiB, beside direct ones": 1,
		"hazards of a pure proxy": (ways+1)*5 + 1,
	} {
		if found["sockmap/"+name] != want {
			t.Errorf("%d rows of %q, want %d; all: %v", found["sockmap/"+name], name, want, found)
		}
	}
	for name, least := range map[string]int{"pure proxy, 64 B requests": 5 * ways, "pure proxy, 64 KiB of a stream": 3 * ways, "programs": 10} {
		if found["sockmap/"+name] < least {
			t.Errorf("%d rows of %q, want %d or more", found["sockmap/"+name], name, least)
		}
	}
}
