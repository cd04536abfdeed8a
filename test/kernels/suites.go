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

// suite is something to run on kernels. Everything is built here, statically, and runs in a
// directory of its own.
type suite struct {
	name          string
	pkg           string   // package of the tests or of the command to run
	args          []string // more flags for the tests
	skip          string   // pattern of tests that no kernel runs in this suite, with the reason where it is used
	extraCommands []string // packages of commands to put into the same directory
	foreign       []foreign
	modules       []string // kernel modules that only this suite needs
	command       bool     // pkg is a command, not tests
	without       []string // kernels without anything for it to test
	alone         []alone  // tests for which one kernel is enough
	once          string   // the only kernel that runs it with -short, since others' part in it differs little
	exact         bool     // it judges times, so its machine's clock counts instructions
	files         []string // files of the tree that it reads, put at the same paths
	limit         time.Duration
	refuses       *regexp.Regexp // for a command that must fail with exit code 1: what it must print
}

// alone names tests that run on one kernel only, for the reason given where it is used.
type alone struct {
	kernel string
	tests  string // pattern of test names
}

// foreign is a third-party command that is put into a suite's directory.
type foreign struct {
	name string
	dir  string // directory of our module that pins its version
	pkg  string
}

// otherRates are the tests of rates that are a suite of their own: as one, all of them would keep a machine longer than
// everything else does.
const otherRates = "^TestBandwidth(AfterAnother|Bond|Direct|Queues|Tunnel)$"

// suites returns what runs where the agent must work. Anything else to be proven on every kernel
// becomes a line here. Alone on two cores, each suite takes a sixth of its limit on the kernel
// where it takes longest; the rest is for machines with other work to do. The limits also decide
// how suites are dealt to machines, so a limit far from what a suite takes makes one machine wait
// for another.
func suites() []suite {
	return []suite{
		{name: "programs", pkg: "test/kernels/programs", args: []string{"-test.short"}, limit: 3 * time.Minute},
		{name: "maps", pkg: "pkg/maps", limit: 5 * time.Minute},
		{
			name: "datapath", pkg: "pkg/datapath", once: "6.1", limit: 7 * time.Minute,
			// These make every step fail, or kill an agent at every step, at a second of emulation
			// each: the steps do not depend on the kernel. Nor does which clients the agent keeps waiting,
			// how it makes room for clients, or what it reports about attachments that others have
			// changed. Growing under XDP takes half a minute longer than at tc, for the maps of the
			// same programs; taking over from another version is covered by the suite maps for the
			// rows, and by growth for replacing programs under traffic. The order among those whose
			// connections another proxy has translated, or will translate, is decided without the
			// kernel, and needs nft.
			skip: "^(TestCrashAtEveryStep|TestGrowFails|TestCrashWhileFlowsGrow|TestGrowFlowsFails|TestEnlargeFails|TestAttachFails|TestAttachFailsToMove|TestAttachFailsToSwitch|TestGrowthKeepsNobodyWaiting|TestClientsGetRoom|TestTakeOver|TestTakeOverLate|TestTakeOverAgain|TestTakeOverUnderConnects|TestCheckAttachment|TestTake|TestHandOver)$|^TestGrowFlowsUnderTraffic$/^tc_and_XDP$",
		},
		{name: "optout", pkg: "pkg/optout", limit: time.Minute},
		{
			name: "netns", pkg: "test/netns", once: "6.1", limit: 9 * time.Minute,
			// Which sockets are stale is decided without the kernel. One of each kind shows what
			// the kernel does to those, and what it leaves alone.
			skip: "^TestStaleIsGoneForGood$/^(another_|it_has|it_ends|it_is|it_drains_with|the_frontend|the_Service)|^TestStaleStreams$/^(does_not|another_port|the_Service)",
			// What a socket sees of another's calls is decided by the rows of the programs; half a minute on the newest.
			alone: []alone{{"6.1", "^TestSocketNoninterference$"}},
		},
		// A machine for tests may lack VLANs, bonds and SCTP; these machines have them.
		{name: "links", pkg: "test/netns/outside", args: []string{"-test.run=^TestLinks$"}, once: "7.2", limit: 3 * time.Minute},
		{name: "sctp", pkg: "test/netns/outside", args: []string{"-test.run=^TestSCTP$"}, once: "7.2", limit: 5 * time.Minute},
		{
			name: "podsctp", pkg: "test/podnet", extraCommands: []string{"cmd/fairlead-cni"}, args: []string{"-test.run=^TestSCTP"},
			without: []string{"6.12"}, once: "6.1", limit: 8 * time.Minute,
			// The stack translates nothing here; what the programs leave to it is alike everywhere.
			alone: []alone{{"6.1", "^TestSCTP(OfOtherNodes)?$/by_the_stack$"}},
		},
		{
			name: "netkit", pkg: "test/podnet", extraCommands: []string{"cmd/fairlead-cni"}, args: []string{"-test.run=^Test(Has)?Netkit"},
			without: []string{"6.1"}, limit: 6 * time.Minute,
		},
		{
			name: "policies", pkg: "test/podnet", extraCommands: []string{"cmd/fairlead-cni"},
			foreign: []foreign{{name: "kube-network-policies", dir: "test/policies", pkg: "sigs.k8s.io/kube-network-policies/cmd"}},
			modules: []string{"nft_ct", "nft_queue", "nfnetlink_queue"}, args: []string{"-test.run=^TestNetworkPolicy$"},
			// This relies on the stack and nftables, which are alike on all kernels; the newest one
			// takes twice as long, for the programs of three nodes.
			without: []string{"6.12", "7.2"}, limit: 5 * time.Minute,
		},
		{
			name: "bandwidth", pkg: "test/podnet", extraCommands: []string{"cmd/fairlead-cni", "cmd/fairlead"},
			args:    []string{"-test.run=^TestBandwidth(ByStack)?$"},
			without: []string{"6.12"}, once: "7.2", exact: true, limit: 14 * time.Minute,
			alone: []alone{
				// The oldest kernel's emulated stack is faster. The helper that marks ECN senders
				// is older still.
				{"6.1", "^TestBandwidthByStack$/^alone$"}, {"6.1", "^TestBandwidth$/^policed$/^ECN_1$"},
				// Nine seconds of data on any kernel. How the rate holds back senders is also
				// tested by the part about policing.
				{"6.1", "^TestBandwidth$/^far$"},
				// Only newer kernels have bands, and keep the time of a datagram when it leaves a
				// namespace.
				{"7.2", "^TestBandwidth.*$/^bands$"}, {"7.2", "^TestBandwidth$/^paced$"},
			},
		},
		{
			// The oldest kernel is enough for these two: the suite bandwidth has what kernels do differently.
			name: "rates", pkg: "test/podnet", extraCommands: []string{"cmd/fairlead-cni", "cmd/fairlead"}, args: []string{"-test.run=" + otherRates},
			without: []string{"6.12", "7.2"}, exact: true, limit: 11 * time.Minute,
		},
		{
			// A connection sends as fast as it can for as long as an agent takes to begin. With a single
			// processor, which a machine with an exact clock has, neither gets on.
			name: "switched", pkg: "test/podnet", extraCommands: []string{"cmd/fairlead-cni", "cmd/fairlead"}, args: []string{"-test.run=^TestBandwidthOfAgent$"},
			without: []string{"6.12", "7.2"}, limit: 6 * time.Minute,
		},
		{
			name: "sockmap", pkg: "test/sockmap", args: []string{"-torture=5s", "-tls"}, modules: []string{"tls", "ccm", "ctr"},
			once: "6.1", limit: 12 * time.Minute,
			skip: "^TestAO$", // a suite of its own
			// When a stream leaves is decided by the programs' own counts.
			alone: []alone{{"6.1", "^Test(Bursts|Mutter|Peaks)$"}},
		},
		{name: "ao", pkg: "test/sockmap", args: []string{"-ao", "-test.run=^TestAO$"}, without: []string{"6.1"}, limit: time.Minute},
		{
			name: "demo", command: true, pkg: "test/demo", extraCommands: []string{"cmd/fairlead"}, args: []string{"./fairlead"},
			files: []string{"test/demo/manifests/web.yaml"}, once: "6.1", limit: 3 * time.Minute,
		},
	}
}

// refusals returns what runs where the agent must refuse the kernel.
func refusals() []suite {
	return []suite{{
		name: "agent", command: true, pkg: "cmd/fairlead", files: []string{"test/demo/manifests/web.yaml"}, limit: time.Minute,
		args:    []string{"agent", "--source=test/demo/manifests", "--node-name=vm"},
		refuses: regexp.MustCompile(`(?m)^fairlead: .* needs Linux \d+\.\d+ or newer`),
	}}
}

// chooseSuites returns all suites of either kind, or the named ones.
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

// deal distributes the suites over up to the given number of machines so that all take about the
// same time, according to the limits. Suites that judge times get one more, of their own. Without
// suites there is one machine with none.
func deal(all []suite, machines int) [][]suite {
	var exact []suite
	all = slices.DeleteFunc(slices.Clone(all), func(s suite) bool {
		if s.exact {
			exact = append(exact, s)
		}
		return s.exact
	})
	shares := make([][]suite, max(1, min(machines, len(all))))
	limits := make([]time.Duration, len(shares))
	for _, s := range slices.SortedStableFunc(slices.Values(all), func(a, b suite) int { return cmp.Compare(b.limit, a.limit) }) {
		least := slices.Index(limits, slices.Min(limits))
		shares[least] = append(shares[least], s)
		limits[least] += s.limit
	}
	switch {
	case len(exact) == 0:
		return shares
	case len(all) == 0:
		return [][]suite{exact}
	}
	return append(shares, exact)
}

// isTest reports whether the suite is a package of tests, not a command.
func (s suite) isTest() bool { return !s.command }

// on returns the suite without the tests that it skips, or for which another kernel is enough.
func (s suite) on(kernel string) suite {
	var skip []string
	if s.skip != "" {
		skip = []string{s.skip}
	}
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

// job returns the job that the machine runs.
func (s suite) job() vm.Job {
	args := append([]string{"./" + s.name}, s.args...)
	if s.isTest() {
		// The test gives up a little earlier than the machine, and then shows where it hangs.
		args = append(args, "-test.v", "-test.timeout="+(s.limit-15*time.Second).String())
	}
	return vm.Job{Name: s.name, Args: args, Limit: s.limit}
}

// verdict describes the outcome of the suite in a few words, and reports whether it passed.
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

// outcomes returns the names of the tests with the given outcome: PASS, FAIL or SKIP.
func outcomes(log string) map[string][]string {
	names := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`).FindAllStringSubmatch(log, -1) {
		names[m[1]] = append(names[m[1]], m[2])
	}
	return names
}

// complaint returns the output of the tests that failed, or the end of the log if no test failed.
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

// speaker matches the lines of a log that say which test the following lines come from.
var speaker = regexp.MustCompile(`^(?:=== (?:RUN|NAME|CONT|PAUSE) +|\s*--- (?:PASS|FAIL|SKIP): )(\S+)`)

// payload returns the suite's files in the machine; the binaries are in dir.
func (s suite) payload(dir, tree string) []vm.File {
	in := vm.JobDir(s.name)
	files := []vm.File{{Path: in + "/" + s.name, Mode: 0o755, Source: filepath.Join(dir, s.name)}}
	for _, pkg := range s.extraCommands {
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
