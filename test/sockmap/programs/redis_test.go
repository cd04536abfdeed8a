package programs

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.io/fairlead/test/rig"
)

// TestRedis has redis-benchmark send requests to a redis-server, one at a time and pipelined, while
// a client of ours stores values and checks that they are still there.
func TestRedis(t *testing.T) {
	w := newThreePods(t)
	dir := w.directory(nobody)
	w.start(there, nobody, "redis-server", "--port", "6379", "--bind", "0.0.0.0", "::", "--protected-mode", "no", "--save", "", "--dir", dir)
	w.listens(there, 6379)
	store := rig.NewChild(t, w.cgroup, w.pods[here], "store", net.JoinHostPort(address(there, true), "6379"), load.String())
	count := int(load.Seconds() * 5000)
	var benchmarks []*program
	for _, depth := range []string{"1", "16"} {
		benchmarks = append(benchmarks, w.start(here, nobody, "redis-benchmark", "-h", address(there, false), "-c", "8", "-n", fmt.Sprint(count), "-d", "300", "-P", depth,
			"-t", "ping,set,get,lrange_100", "--csv"))
	}
	w.disturb(*load)
	line, err := store.ReadLine()
	w.Must(err)
	var a answer
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		t.Fatalf("the client says %q", line)
	}
	for _, fault := range a.Faults {
		t.Error(fault)
	}
	for _, benchmark := range benchmarks {
		said := benchmark.ended() // fails if any answer is an error
		tests := strings.Count(said, "\n\"")
		if tests < 4 {
			t.Errorf("redis-benchmark says:\n%s", said)
		}
		a.Requests += tests * count
	}
	before := w.tallies().Excluded["blocking"]
	// redis-benchmark asks for the settings with blocking reads.
	w.wantRequests("redis and redis-benchmark", a.Requests, a.Failed, expectation{share: 0.5, each: 0.3, may: []string{"blocking"}})
	// redis-cli blocks in its reads.
	if said := w.run(here, nobody, "redis-cli", "-h", address(there, false), "-r", "50", "ping"); strings.Count(said, "PONG") != 50 {
		t.Errorf("redis-cli says:\n%s", said)
	}
	if after := w.tallies().Excluded["blocking"]; after != before+1 {
		t.Errorf("redis-cli: %d connections were excluded because of blocking", after-before)
	}
	w.gone()
}

// storeMain stores values in a redis and checks that they are still there.
func storeMain(args []string) int {
	long, err := time.ParseDuration(args[1])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	var a answer
	for i := range 4 {
		group.Go(func() {
			n, err := storeSome(args[0], i, time.Now().Add(long))
			mu.Lock()
			defer mu.Unlock()
			a.Requests += n
			if err != nil {
				a.Failed++
				a.Faults = append(a.Faults, err.Error())
			}
		})
	}
	group.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		return 1
	}
	return 0
}

func storeSome(addr string, who int, end time.Time) (requests int, err error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	random := rand.New(rand.NewPCG(uint64(who), 0))
	for time.Now().Before(end) {
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return requests, err
		}
		value, err := content(name([]int{1, 200, 3000, 50_000, 500_000}, random))
		if err != nil {
			return requests, err
		}
		key := fmt.Sprintf("ours-%d-%d", who, random.IntN(100))
		if got, err := redis(conn, reader, "SET", key, string(value)); err != nil || got != "OK" {
			return requests, fmt.Errorf("set %s: %.50q, %w", key, got, err)
		}
		if got, err := redis(conn, reader, "GET", key); err != nil || got != string(value) {
			return requests, fmt.Errorf("get %s: %d wrong bytes of %d, %w", key, len(got), len(value), err)
		}
		requests += 2
	}
	return requests, nil
}

// redis sends a command to a redis, and returns the answer.
func redis(conn net.Conn, reader *bufio.Reader, words ...string) (string, error) {
	request := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		request = fmt.Appendf(request, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := conn.Write(request); err != nil {
		return "", err
	}
	line, err := reader.ReadString('\n')
	if err != nil {
		return "", err
	}
	var size int
	if _, err := fmt.Sscanf(line, "$%d\r\n", &size); err != nil {
		if text, ok := strings.CutPrefix(line, "+"); ok {
			return strings.TrimSpace(text), nil
		}
		return "", errors.New(line)
	}
	got := make([]byte, size+2)
	_, err = io.ReadFull(reader, got)
	return string(got[:size]), err
}
