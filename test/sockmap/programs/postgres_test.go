package programs

import (
	"crypto/md5"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestPostgreSQL has pgbench run the transactions of a bank, whose accounts must add up in the end,
// and a script that has PostgreSQL repeat what it said, while psql asks for results of megabytes
// and compares them with what they should be.
func TestPostgreSQL(t *testing.T) {
	if !*all {
		t.Skip("-all runs it")
	}
	w := newThreePods(t)
	dir := w.directory(nobody)
	data := filepath.Join(dir, "data")
	w.run(there, nobody, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "--locale=C")
	hba, err := os.OpenFile(filepath.Join(data, "pg_hba.conf"), os.O_WRONLY|os.O_APPEND, 0)
	w.Must(err)
	fmt.Fprintln(hba, "host all all 0.0.0.0/0 trust\nhost all all ::/0 trust")
	w.Must(hba.Close())
	w.start(there, nobody, "postgres", "-D", data, "-h", "*", "-k", "", "-F", "-c", "dynamic_shared_memory_type=mmap")
	at := []string{"-h", address(there, false), "-U", "postgres", "-d", "postgres"}
	ready := append(at, "-qAt", "-c", "select 1")
	w.Until("the database", func() bool { p := w.start(here, nobody, "psql", ready...); return p.Wait() == nil })
	w.run(here, nobody, "pgbench", append(at, "-q", "-i", "-s", "2")...)
	script := filepath.Join(dir, "script")
	w.Must(os.WriteFile(script, []byte(pgScript), 0o644))

	seconds := strconv.Itoa(int(load.Seconds()))
	bank := w.start(here, nobody, "pgbench", append(at, "-n", "-c", "4", "-j", "2", "-T", seconds)...)
	prepared := w.start(here, nobody, "pgbench", append(at, "-n", "-c", "4", "-j", "2", "-T", seconds, "-S", "-M", "prepared")...)
	again := w.start(here, nobody, "pgbench", "-h", address(there, true), "-U", "postgres", "-d", "postgres", "-n", "-c", "4", "-T", seconds, "-f", script)
	streams := make(chan int)
	end := time.Now().Add(*load)
	go func() {
		n := 0
		for ; time.Now().Before(end); n++ {
			w.largeResult(at)
		}
		streams <- n
	}()
	w.disturb(*load)
	requests, failed := <-streams, 0
	for _, one := range []*program{bank, prepared, again} {
		done, undone := pgSays(t, one.ended())
		requests, failed = requests+done, failed+undone
	}
	said := w.run(here, nobody, "psql", append(at, "-qAt", "-c", "select sum(abalance) = (select sum(delta) from pgbench_history) and sum(abalance) = "+
		"(select sum(bbalance) from pgbench_branches) and sum(abalance) = (select sum(tbalance) from pgbench_tellers) from pgbench_accounts")...)
	if strings.TrimSpace(said) != "t" {
		t.Errorf("the accounts of the bank differ: %s", said)
	}
	w.wantRequests("PostgreSQL and pgbench", requests, failed, expectation{share: 0.5, each: 1})
	w.gone()
}

// pgScript has the database say something and compare it with what it is sent back; a difference
// fails with a division by zero.
const pgScript = `
\set x random(1, 100000)
\set n random(1, 200)
select repeat(md5(:x::text), :n) as said \gset
select 1 / (case when repeat(md5(:x::text), :n) = ':said' then 1 else 0 end);
`

// largeResult asks for a result of some megabytes.
func (w *threePods) largeResult(at []string) {
	const rows = 5000
	said := w.start(here, nobody, "psql", append(at, "-qAt", "-c", fmt.Sprintf("select repeat(md5(i::text), 16) from generate_series(1, %d) i", rows))...)
	if err := said.Wait(); err != nil {
		w.T.Errorf("%v\n%s", err, said.said())
		return
	}
	var want strings.Builder
	for i := range rows {
		fmt.Fprintln(&want, strings.Repeat(fmt.Sprintf("%x", md5.Sum([]byte(strconv.Itoa(i+1)))), 16))
	}
	if got := said.said(); got != want.String() {
		w.T.Errorf("a result of %d bytes has %d, or wrong ones", want.Len(), len(got))
	}
}

// pgSays returns how many transactions pgbench ran, and how many of them failed.
func pgSays(t *testing.T, said string) (done, failed int) {
	t.Helper()
	for form, number := range map[string]*int{`actually processed: (\d+)`: &done, `failed transactions: (\d+)`: &failed} {
		found := regexp.MustCompile(form).FindStringSubmatch(said)
		if len(found) < 2 {
			t.Fatalf("pgbench says:\n%s", said)
		}
		*number, _ = strconv.Atoi(found[1])
	}
	if strings.Contains(said, "aborted") {
		t.Errorf("pgbench says:\n%s", said)
	}
	return done, failed
}
