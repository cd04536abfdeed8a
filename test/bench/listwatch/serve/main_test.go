package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source/kube"
)

// An agent that uses the kubeconfig finds the cluster.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-services=20", "-endpoints=1", "-nodes=1", "-changes=1000", "-kubeconfig=" + config}, writer)
		_ = writer.Close()
	}()
	lines := bufio.NewScanner(reader)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "http://127.0.0.1:") {
		t.Fatalf("the server printed %q and ended with %v", lines.Text(), <-ended)
	}
	store := model.NewStore("node-0")
	source, err := kube.New(kube.Config{Kubeconfig: config, NodeName: "node-0", Store: store, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	followed := make(chan error, 1)
	follow, unfollow := context.WithCancel(t.Context())
	go func() { followed <- source.Run(follow) }()
	select {
	case <-store.Synced():
	case <-time.After(time.Minute):
		t.Fatalf("not synced: %+v", source.Status())
	}
	store.TakeDirty()
	<-store.Wake() // a change
	unfollow()
	cancel()
	if !lines.Scan() || !strings.Contains(lines.Text(), " slices changed, 0 services came, 0 went") || strings.HasPrefix(lines.Text(), "0") {
		t.Errorf("the server printed %q at the end", lines.Text())
	}
	for _, done := range []chan error{ended, followed} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestRefused(t *testing.T) {
	for want, arguments := range map[string]string{
		"not a loopback address": "-listen=0.0.0.0:0", "0 nodes": "-nodes=0", "unexpected argument": "now", "not defined": "-rate=1",
		"write the kubeconfig": "-kubeconfig=/dev/null/x -services=1",
	} {
		if err := run(t.Context(), strings.Fields(arguments), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: have error %v, want one with %q", arguments, err, want)
		}
	}
}
