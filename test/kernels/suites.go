package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"fairlead.io/fairlead/test/kernels/vm"
)

const module = "fairlead.io/fairlead/"

// suite is something to run on kernels. All of it is built here, statically, and runs in a directory of its own.
type suite struct {
	name    string
	pkg     string   // a package whose tests run, or a command
	args    []string // for tests, more flags
	beside  []string // packages whose commands are put beside it
	foreign []foreign
	modules []string // of the kernel, that the others do without
	command bool     // it is one, and no tests
	without []string // kernels that have nothing for it to test
	alone   []alone  // tests that one of its kernels is enough for
	files   []string // files of the tree that it reads, which are put where they are in the tree
	limit   time.Duration
	refuses *regexp.Regexp // for a command that has to fail with exit code 1: what it has to say
}

// alone are tests that run on one kernel, for a reason that is said where it is chosen.
type alone struct {
	kernel string
	tests  string // a pattern
}

// foreign is a command of others that is put beside a suite.
type foreign struct {
	name string
	dir  string // of the module of ours that says in which version
	pkg  string
}

// otherRates are the tests of rates that are a suite of their own: as one, all of them would keep a machine longer than
// everything else does.
const otherRates = "^TestBandwidth(AfterAnother|Direct|OfAgent|Queues|Tunnel)$"

// suites are what runs where the agent has to work. Whatever else is to be proven on every kernel becomes a line here.
// Alone on two cores each takes a sixth of its limit, on the kernel where it takes longest; the rest is for machines with other
// work to do. They are dealt out by that, so a limit that does not say what a suite takes has a machine wait for another.
func suites() []suite {
	return []suite{
		{name: "programs", pkg: "test/kernels/programs", args: []string{"-test.short"}, limit: 3 * time.Minute},
		{name: "maps", pkg: "pkg/maps", limit: 2 * time.Minute},
		{
			name: "datapath", pkg: "pkg/datapath", limit: 7 * time.Minute,
			// These fail or kill an agent at every step, a second of emulation each: the steps are not the kernel's. Nor is
			// whom the agent keeps waiting, how it finds room for clients, or what it says of attachments that somebody else has
			// changed. And to grow under XDP takes half a minute more than at tc, for the same programs' maps; of what takes
			// over from another version the rows are carried in the suite maps, and programs replaced under traffic by growth. Who
			// comes first of those whom another proxy has translated is decided without the kernel, and takes nft.
			args: []string{"-test.skip=^(TestCrashAtEveryStep|TestGrowFails|TestCrashWhileFlowsGrow|TestGrowFlowsFails|TestEnlargeFails|TestAttachFails|TestAttachFailsToMove|TestAttachFailsToSwitch|TestGrowthKeepsNobodyWaiting|TestClientsGetRoom|TestTakeOver|TestTakeOverLate|TestTakeOverAgain|TestTakeOverUnderConnects|TestCheckAttachment|TestTake)$|^TestGrowFlowsUnderTraffic$/^tc_and_XDP$"},
		},
		{name: "optout", pkg: "pkg/optout", limit: time.Minute},
		{
			name: "netns", pkg: "test/netns", limit: 9 * time.Minute,
			// Which sockets are stale is decided without the kernel. What it does to those and what it leaves alone, one of
			// each kind shows.
			args: []string{"-test.skip=^TestStaleIsGoneForGood$/^(another_|it_has|it_ends|it_is|it_drains_with|the_frontend|the_Service)|^TestStaleStreams$/^(does_not|another_port|the_Service)"},
		},
		// A machine for tests may have no VLANs, no bonds and no SCTP, and these do.
		{name: "links", pkg: "test/netns/outside", args: []string{"-test.run=^TestLinks$"}, limit: 3 * time.Minute},
		{name: "sctp", pkg: "test/netns/outside", args: []string{"-test.run=^TestSCTP$"}, limit: 5 * time.Minute},
		{
			name: "netkit", pkg: "test/podnet", beside: []string{"cmd/fairlead-cni"}, args: []string{"-test.run=^Test(Has)?Netkit"},
			without: []string{"6.1"}, limit: 6 * time.Minute,
		},
		{
			name: "policies", pkg: "test/podnet", beside: []string{"cmd/fairlead-cni"},
			foreign: []foreign{{name: "kube-network-policies", dir: "test/policies", pkg: "sigs.k8s.io/kube-network-policies/cmd"}},
			modules: []string{"nft_ct", "nft_queue", "nfnetlink_queue"}, args: []string{"-test.run=^TestNetworkPolicy$"},
			// It is the stack and nftables that this stands on, and those are alike; the newest takes twice as long, for the programs of three nodes.
			without: []string{"6.12", "7.2"}, limit: 3 * time.Minute,
		},
		{
			name: "bandwidth", pkg: "test/podnet", beside: []string{"cmd/fairlead-cni", "cmd/fairlead"},
			args:    []string{"-test.run=^TestBandwidth(ByStack)?$"},
			without: []string{"6.12"}, limit: 14 * time.Minute,
			alone: []alone{
				// The oldest kernel's emulated stack is the faster one. Who uses ECN is marked by a helper that is older still.
				{"6.1", "^TestBandwidthByStack$/^alone$"}, {"6.1", "^TestBandwidth$/^policed$/^ECN_1$"},
				// Nine seconds of data, whichever kernel gets it: how that holds its senders is in the part about policing too.
				{"6.1", "^TestBandwidth$/^far$"},
				// Only newer ones have bands, and keep the time of a datagram as it leaves a namespace.
				{"7.2", "^TestBandwidth.*$/^bands$"}, {"7.2", "^TestBandwidth$/^paced$"},
			},
		},
		{
			name: "rates", pkg: "test/podnet", beside: []string{"cmd/fairlead-cni", "cmd/fairlead"}, args: []string{"-test.run=" + otherRates},
			without: []string{"6.12"}, limit: 8 * time.Minute,
			// The newest kernel's tunnel is emulated at 30 Mbit/s, of which a rate of 10 is no more to be judged; the oldest's at 74.
			alone: []alone{{"6.1", "^TestBandwidthTunnel$"}},
		},
		{
			name: "sockmap", pkg: "test/sockmap", args: []string{"-torture=5s", "-tls", "-test.skip=^TestAO$"}, modules: []string{"tls", "ccm", "ctr"},
			limit: 12 * time.Minute,
		},
		{name: "ao", pkg: "test/sockmap", args: []string{"-ao", "-test.run=^TestAO$"}, without: []string{"6.1"}, limit: time.Minute},
		{
			name: "demo", command: true, pkg: "test/demo", beside: []string{"cmd/fairlead"}, args: []string{"./fairlead"},
			files: []string{"test/demo/manifests/web.yaml"}, limit: 3 * time.Minute,
		},
	}
}

// refusals are what runs where the agent has to refuse the kernel.
func refusals() []suite {
	return []suite{{
		name: "agent", command: true, pkg: "cmd/fairlead", files: []string{"test/demo/manifests/web.yaml"}, limit: time.Minute,
		args:    []string{"agent", "--source=test/demo/manifests", "--node-name=vm"},
		refuses: regexp.MustCompile(`(?m)^fairlead: .* needs Linux \d+\.\d+ or newer`),
	}}
}

// chooseSuites returns all suites of either kind, or those with the names.
func chooseSuites(names []string) (chosen []suite, err error) {
	all := slices.Concat(suites(), refusals())
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		at := slices.IndexFunc(all, func(s suite) bool { return s.name == name })
		if at < 0 {
			return nil, fmt.Errorf("find suite %s: there is none", name)
		}
		chosen = append(chosen, all[at])
	}
	return chosen, nil
}

// deal gives each of so many machines, or of fewer, suites that may take about as long together as those of the others. The
// limits say how long that is. Without any suites there is one machine for none.
func deal(all []suite, machines int) [][]suite {
	shares := make([][]suite, max(1, min(machines, len(all))))
	limits := make([]time.Duration, len(shares))
	for _, s := range slices.SortedStableFunc(slices.Values(all), func(a, b suite) int { return cmp.Compare(b.limit, a.limit) }) {
		least := slices.Index(limits, slices.Min(limits))
		shares[least] = append(shares[least], s)
		limits[least] += s.limit
	}
	return shares
}

// isTest tells a package of tests from a command.
func (s suite) isTest() bool { return !s.command }

// on returns the suite without the tests that another kernel is enough for.
func (s suite) on(kernel string) suite {
	var skip []string
	for _, a := range s.alone {
		if a.kernel != kernel {
			skip = append(skip, a.tests)
		}
	}
	if len(skip) > 0 {
		s.args = append(slices.Clone(s.args), "-test.skip="+strings.Join(skip, "|"))
	}
	return s
}

// job returns what the machine runs.
func (s suite) job() vm.Job {
	args := append([]string{"./" + s.name}, s.args...)
	if s.isTest() {
		// The test gives up a little earlier than the machine, and then shows where it hangs.
		args = append(args, "-test.v", "-test.timeout="+(s.limit-15*time.Second).String())
	}
	return vm.Job{Name: s.name, Args: args, Limit: s.limit}
}

// verdict says in a few words how the suite went, and whether it passed.
func (s suite) verdict(result vm.Result) (text string, ok bool, err error) {
	log, err := os.ReadFile(result.Log)
	if err != nil {
		return "", false, fmt.Errorf("read log: %w", err)
	}
	if s.refuses != nil {
		if result.Code != 1 || !s.refuses.Match(log) {
			return fmt.Sprintf("exit code %d, and not the refusal that was expected", result.Code), false, nil
		}
		return "refused", true, nil
	}
	outcomes := outcomes(string(log))
	if result.Code != 0 {
		return strings.Join(append([]string{fmt.Sprintf("exit code %d", result.Code)}, outcomes["FAIL"]...), ", "), false, nil
	}
	if !s.isTest() {
		return "passed", true, nil
	}
	if skipped := outcomes["SKIP"]; len(skipped) > 0 {
		return "skipped " + strings.Join(skipped, ", "), false, nil
	}
	passed := len(outcomes["PASS"])
	return fmt.Sprintf("%d passed", passed), passed > 0, nil
}

// outcomes returns the names of the tests that ended so, by PASS, FAIL and SKIP.
func outcomes(log string) map[string][]string {
	names := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`).FindAllStringSubmatch(log, -1) {
		names[m[1]] = append(names[m[1]], m[2])
	}
	return names
}

// complaint returns what the tests that failed have said; of a log without such, the end.
func complaint(log string) string {
	failed := outcomes(log)["FAIL"]
	var said []string
	speaks := ""
	lines := strings.Split(strings.TrimRight(log, "\n"), "\n")
	for _, line := range lines {
		if m := speaker.FindStringSubmatch(line); m != nil {
			speaks = m[1]
			if slices.Contains(failed, speaks) {
				said = append(said, line)
			}
		} else if slices.Contains(failed, speaks) {
			said = append(said, line)
		}
	}
	if len(said) == 0 {
		said = lines
	}
	return strings.Join(said[max(0, len(said)-logLines):], "\n")
}

// speaker is the line of a log that says which test's lines follow.
var speaker = regexp.MustCompile(`^(?:=== (?:RUN|NAME|CONT|PAUSE) +|\s*--- (?:PASS|FAIL|SKIP): )(\S+)`)

// payload returns the files of the suite in the machine; the binaries are in dir.
func (s suite) payload(dir, tree string) []vm.File {
	in := vm.JobDir(s.name)
	files := []vm.File{{Path: in + "/" + s.name, Mode: 0o755, Source: filepath.Join(dir, s.name)}}
	for _, pkg := range s.beside {
		name := filepath.Base(pkg)
		files = append(files, vm.File{Path: in + "/" + name, Mode: 0o755, Source: filepath.Join(dir, name)})
	}
	for _, f := range s.foreign {
		files = append(files, vm.File{Path: in + "/" + f.name, Mode: 0o755, Source: filepath.Join(dir, f.name)})
	}
	for _, file := range s.files {
		files = append(files, vm.File{Path: in + "/" + file, Mode: 0o644, Source: filepath.Join(tree, file)})
	}
	return files
}
