package cni

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxMessage has room for the valid attachments of a node with tens of thousands of them.
	maxMessage  = 8 << 20
	lengthBytes = 4
)

// send writes a message: its length and its JSON. The file, if there is one, travels with the
// length.
func send(conn *net.UnixConn, message any, file *os.File) error {
	body, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(body) > maxMessage {
		return fmt.Errorf("message of %d bytes is too long", len(body))
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	// One write, as far as the kernel takes it, so that the other end wakes up once.
	whole := append(binary.BigEndian.AppendUint32(make([]byte, 0, lengthBytes+len(body)), uint32(len(body))), body...)
	sent, _, err := conn.WriteMsgUnix(whole, rights, nil)
	if err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	if sent == len(whole) {
		return nil
	}
	if _, err := conn.Write(whole[sent:]); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// receive reads a message into message, and returns the file that came with it, or nil. The caller
// closes the file.
func receive(conn *net.UnixConn, message any) (file *os.File, err error) {
	defer func() {
		if err != nil && file != nil {
			file.Close()
			file = nil
		}
	}()
	var length [lengthBytes]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, got, _, _, err := conn.ReadMsgUnix(length[:], rights)
	if err != nil {
		return nil, fmt.Errorf("receive message: %w", err)
	}
	// Take the file before anything can fail, or it would stay open.
	if file, err = fileOf(rights[:got]); err != nil {
		return nil, err
	}
	if n == 0 {
		return file, io.EOF
	}
	if _, err := io.ReadFull(conn, length[n:]); err != nil {
		return file, fmt.Errorf("receive message: %w", err)
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > maxMessage {
		return file, fmt.Errorf("receive message: a length of %d bytes is too long", size)
	}
	decoder := json.NewDecoder(io.LimitReader(conn, int64(size)))
	if err := decoder.Decode(message); err != nil {
		return file, fmt.Errorf("decode message: %w", err)
	}
	return file, nil
}

// fileOf returns the one file in a control message. The kernel closes a second one, for which the
// buffer has no room.
func fileOf(rights []byte) (*os.File, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, fmt.Errorf("receive a file: %w", err)
	}
	var fds []int
	for i := range messages {
		more, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, fmt.Errorf("receive a file: %w", err)
		}
		fds = append(fds, more...)
	}
	if len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, errors.New("receive a file: want exactly one")
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "received"), nil
}
