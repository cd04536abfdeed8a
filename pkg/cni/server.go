package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/unixsock"
)

// SocketName is what the socket is called in the agent's state directory.
const SocketName = "cni.sock"

// mostAtOnce is how many requests are worked on; more wait.
const mostAtOnce = 64

// Handler answers requests, which were validated. The file is nil unless one came with the request; it becomes the
// handler's. It may be called from several goroutines. An error that is a *types.Error keeps its code.
type Handler interface {
	Handle(request *Request, file *os.File) (*Answer, error)
}

// Server answers the plugin.
type Server struct {
	path     string
	listener *net.UnixListener
	handler  Handler
	log      *slog.Logger
}

// NewServer listens at path. That no other agent does is the caller's to know. Requests are answered once Serve runs; the
// caller calls Serve or Close.
func NewServer(path string, handler Handler, log *slog.Logger) (*Server, error) {
	if err := unixsock.PrepareDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	listener, err := unixsock.Listen(path)
	if err != nil {
		return nil, err
	}
	return &Server{path: path, listener: listener, handler: handler, log: log}, nil
}

// Serve answers until the context ends, finishes what it is at, and closes the Server.
func (s *Server) Serve(ctx context.Context) error {
	// Not by closing it: whoever takes the socket's file away must have done so when this returns, or it were the next agent's.
	stop := context.AfterFunc(ctx, func() { _ = s.listener.SetDeadline(time.Now()) })
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, mostAtOnce)
	for {
		conn, err := s.listener.AcceptUnix()
		if ctx.Err() != nil {
			if conn != nil {
				conn.Close()
			}
			return s.Close()
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			s.log.Error("the plugin cannot be answered: too many open files")
			time.Sleep(again) // or it would spin until some are closed
			continue
		}
		if err != nil {
			return errors.Join(fmt.Errorf("accept the plugin: %w", err), s.Close())
		}
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			if err := s.answer(conn); err != nil {
				s.log.Warn("the plugin got no answer", "error", err)
			}
		})
	}
}

// Close takes the socket away. Closing twice is no error.
func (s *Server) Close() error {
	err := s.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if removed := os.Remove(s.path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	return err
}

func (s *Server) answer(conn *net.UnixConn) error {
	if err := conn.SetDeadline(time.Now().Add(exchange)); err != nil {
		return err
	}
	if err := fromRoot(conn); err != nil {
		return err
	}
	request := &Request{}
	file, err := receive(conn, request)
	if err != nil {
		return err
	}
	answer, err := s.handle(request, file)
	if err != nil {
		answer = &Answer{Error: asRefusal(err)}
	}
	if err := conn.SetDeadline(time.Now().Add(exchange)); err != nil {
		return err
	}
	return send(conn, answer, nil)
}

func (s *Server) handle(request *Request, file *os.File) (*Answer, error) {
	if err := request.Validate(); err != nil {
		if file != nil {
			file.Close()
		}
		return nil, Refusal(types.ErrInvalidNetworkConfig, "%v", err)
	}
	return s.handler.Handle(request, file)
}

// fromRoot is a second lock: the socket and its directory are closed to others already.
func fromRoot(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if asked != nil {
		return fmt.Errorf("ask who it is: %w", asked)
	}
	if int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("it is of user %d", peer.Uid)
	}
	return nil
}
