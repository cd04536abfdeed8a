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
)

// SocketName is the name of the socket in the agent's state directory.
const SocketName = "cni.sock"

// mostAtOnce limits the requests that are handled at once; more have to wait.
const mostAtOnce = 64

// Handler answers validated requests. It takes ownership of file, which is nil unless one came with
// the request. It must be safe for concurrent use. An error that is a *types.Error keeps its code.
type Handler interface {
	Handle(request *Request, file *os.File) (*Answer, error)
}

// Server answers the plugin's requests.
type Server struct {
	path     string
	listener *net.UnixListener
	handler  Handler
	log      *slog.Logger
}

// NewServer listens at path. The caller makes sure that no other agent does, and has to call Serve,
// which answers the requests, or Close.
func NewServer(path string, handler Handler, log *slog.Logger) (*Server, error) {
	if err := PrepareSocketDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	listener, err := ListenSocket(path)
	if err != nil {
		return nil, err
	}
	return &Server{path: path, listener: listener, handler: handler, log: log}, nil
}

// Serve answers until the context ends, finishes the requests in progress, and closes the Server.
func (s *Server) Serve(ctx context.Context) error {
	// End accepting by a deadline, not by closing the listener in the background: Serve must have
	// removed the socket's file by the time it returns, or it might remove that of the next agent.
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
			s.log.Error("cannot accept requests of the CNI plugin: too many open files")
			time.Sleep(again) // do not spin until some are closed
			continue
		}
		if err != nil {
			return errors.Join(fmt.Errorf("accept a request of the plugin: %w", err), s.Close())
		}
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			if err := s.answer(conn); err != nil {
				s.log.Warn("cannot answer the CNI plugin", "error", err)
			}
		})
	}
}

// Close removes the socket. Closing twice is no error.
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

// fromRoot refuses other users. It is a second lock: the modes of the socket and its directory keep
// them out already.
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
		return fmt.Errorf("read the credentials of the peer: %w", asked)
	}
	if int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("the peer runs as user %d", peer.Uid)
	}
	return nil
}
