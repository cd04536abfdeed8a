package connections

import (
	"context"
	"errors"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/sockets"
)

// StaleSockets aborts sockets in the node's own network namespace whose backend is gone for good. On a kernel
// that cannot abort sockets, connections still work; the log and the status say so.
type StaleSockets struct {
	running *sockets.Sweeper // nil if the kernel cannot abort sockets
	origins *datapath.SocketOrigins
}

// NewStaleSockets returns what aborts sockets, which says in its status if it cannot.
func NewStaleSockets(cfg *Config) *StaleSockets {
	s := &StaleSockets{}
	if err := s.open(cfg); err != nil {
		cfg.Log.Warn("cannot abort sockets whose backend is gone for good", "error", err)
		s.running = nil
	}
	return s
}

func (s *StaleSockets) open(cfg *Config) (err error) {
	streams := cfg.Options.ResetStaleTCP == "true"
	if s.origins, err = cfg.Path.SocketOrigins(streams); err != nil {
		return err
	}
	node, err := sockets.Open()
	if err != nil {
		return errors.Join(err, s.origins.Close())
	}
	protocols := []model.Protocol{model.UDP}
	if streams {
		protocols = append(protocols, model.TCP)
	}
	s.running = sockets.NewSweeper(sockets.Config{Records: s.origins, Protocols: protocols, Stale: cfg.Stale, Log: cfg.Log})
	return s.running.Add("node", node)
}

// Run aborts sockets until the context ends.
func (s *StaleSockets) Run(ctx context.Context) error {
	if s.running == nil {
		return nil
	}
	return errors.Join(s.running.Run(ctx), s.running.Close(), s.origins.Close())
}

// Left says that a backend of the protocol is gone.
func (s *StaleSockets) Left(protocol model.Protocol) {
	if s.running != nil {
		s.running.Left(protocol)
	}
}

// Stats returns the counts, which are zero if the kernel cannot abort sockets.
func (s *StaleSockets) Stats() sockets.Stats {
	if s == nil || s.running == nil {
		return sockets.Stats{}
	}
	return s.running.Stats()
}

// Works reports whether the kernel can abort sockets, as far as is known.
func (s *StaleSockets) Works() bool {
	return s == nil || s.running != nil && s.running.Stats().LastError == ""
}
