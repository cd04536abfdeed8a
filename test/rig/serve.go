package rig

import "net"

// Serve serves every connection to a listener on a goroutine of its own, closes it after that, and ends once the listener
// is closed.
func Serve(listener net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}
