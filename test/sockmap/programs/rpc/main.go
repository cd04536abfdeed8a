// Command rpc is a gRPC server and client. It is a module of its own because nothing else here
// needs gRPC.
//
//	rpc serve ADDRESS
//	rpc ask ADDRESS CONNECTIONS STREAMS DURATION
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) == 5 && args[0] == "ask":
		return ask(args[1], args[2], args[3], args[4])
	}
	return errors.New("usage: rpc serve ADDRESS | rpc ask ADDRESS CONNECTIONS STREAMS DURATION")
}

// plain is a codec that sends messages as they are.
type plain struct{}

func (plain) Name() string { return "plain" }

func (plain) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (plain) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

var _ encoding.Codec = plain{}

// answer returns the answer to a message: its checksum and the message itself.
func answer(message []byte) []byte {
	sum := sha256.Sum256(message)
	return append(sum[:], message...)
}

var service = grpc.ServiceDesc{
	ServiceName: "Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Once", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var message []byte
		if err := decode(&message); err != nil {
			return nil, err
		}
		message = answer(message)
		return &message, nil
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Often", ServerStreams: true, ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
		for {
			var message []byte
			if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			message = answer(message)
			if err := stream.SendMsg(&message); err != nil {
				return err
			}
		}
	}}},
}

func serve(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.ForceServerCodec(plain{}))
	server.RegisterService(&service, nil)
	return server.Serve(listener)
}

// asker counts requests and their failures.
type asker struct {
	mu               sync.Mutex
	Requests, Failed int
	Faults           []string
}

func (a *asker) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Requests++
	if err != nil {
		if a.Failed++; len(a.Faults) < 5 {
			a.Faults = append(a.Faults, err.Error())
		}
	}
}

func ask(addr, connections, streams, duration string) error {
	long, err := time.ParseDuration(duration)
	if err != nil {
		return err
	}
	var numbers [2]int
	for i, text := range []string{connections, streams} {
		if numbers[i], err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	end := time.Now().Add(long)
	var a asker
	var group sync.WaitGroup
	for i := range numbers[0] {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(plain{})))
		if err != nil {
			return err
		}
		defer conn.Close()
		for j := range numbers[1] {
			random := rand.New(rand.NewPCG(uint64(i), uint64(j)))
			group.Go(func() {
				for time.Now().Before(end) {
					a.some(conn, random, j%2 == 0)
				}
			})
		}
	}
	group.Wait()
	return json.NewEncoder(os.Stdout).Encode(&a)
}

// some sends some requests, each when the one before has been answered: one call for each, or all
// in one stream.
func (a *asker) some(conn *grpc.ClientConn, random *rand.Rand, once bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var stream grpc.ClientStream
	if !once {
		var err error
		if stream, err = conn.NewStream(ctx, &service.Streams[0], "/Echo/Often"); err != nil {
			a.note(err)
			return
		}
	}
	sizes := []int{1, 100, 100, 1000, 1000, 10_000, 60_000}
	for range 50 {
		message := make([]byte, sizes[random.IntN(len(sizes))])
		for i := range message {
			message[i] = byte(random.Uint32())
		}
		var got []byte
		var err error
		if once {
			err = conn.Invoke(ctx, "/Echo/Once", &message, &got)
		} else if err = stream.SendMsg(&message); err == nil {
			err = stream.RecvMsg(&got)
		}
		if err == nil && !bytes.Equal(got, answer(message)) {
			err = fmt.Errorf("a message of %d bytes was answered by %d, or wrong ones", len(message), len(got))
		}
		a.note(err)
		if err != nil {
			return
		}
	}
	if !once {
		if err := errors.Join(stream.CloseSend(), stream.RecvMsg(new([]byte))); !errors.Is(err, io.EOF) {
			a.note(fmt.Errorf("end of stream: %w", err))
		}
	}
}
