# "make" alone lists the targets. Building needs only Go; the BPF objects are committed. Output goes to bin/ and _output/.

# The only place that names the clang version for the BPF programs: another version gives other objects.
CLANG_MAJOR := 19
CLANG := clang-$(CLANG_MAJOR)
LLVM_STRIP := llvm-strip-$(CLANG_MAJOR)
CLANG_FORMAT := clang-format-$(CLANG_MAJOR)
# Headers are shared by programs that do not use all of their functions.
BPF_CFLAGS := -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-function -idirafter /usr/include/$(shell uname -m)-linux-gnu
GENERATED_IN := pkg/bpf test/bpf test/netns test/bench/frames test/bench/keys test/bench/minimal test/bench/progrun test/bench/socket test/bench/sockmap
FORMATTED := $(wildcard bpf/*.c bpf/lib/*.h test/*/bpf/*.c test/bench/*/bpf/*.[ch])
export CLANG_MAJOR CLANG LLVM_STRIP CLANG_FORMAT GENERATED_IN FORMATTED
export BPF2GO_CC := $(CLANG)
export BPF2GO_STRIP := $(LLVM_STRIP)
export BPF2GO_CFLAGS := $(BPF_CFLAGS)

GO := go
TOOL := $(GO) tool -modfile=test/tools/go.mod
# The version comes from git. A tree without commits, such as an unpacked archive, has none.
VCS = $(if $(shell git rev-parse HEAD 2>/dev/null),auto,false)
# The race detector needs a C compiler.
RACE = $(if $(shell command -v "$$($(GO) env CC)"),-race)
# By default every process under the race detector sleeps for a second at exit, and the tests start hundreds.
export GORACE ?= atexit_sleep_ms=0
# Set if root runs make. Tests run by root must not skip what FAIRLEAD_REQUIRE lists; the environment may set another list.
ROOT := $(if $(filter 0,$(shell id -u)),yes)
ifdef ROOT
export FAIRLEAD_REQUIRE ?= root apiserver cluster
endif

# Packages whose tests have their own target.
NOT_UNIT := test/(bpf|twin|golden|netns|podnet|hostile|sockmap|apiserver|chart|cluster|kernels|bench|layout|rig)|pkg/source/kube
# Packages of pure functions: the race detector finds nothing there, and makes their long property tests twelve times slower.
PURE := pkg/lb pkg/policy pkg/source/podslices
# Packages whose tests mostly wait for the kernel, or compress images: the race detector makes that take several times as long, and
# sees nothing of it. "make race" runs them with it.
UNRACED := pkg/datapath test/tenant deploy/image
empty :=
space := $(empty) $(empty)
PRIVILEGED := test-bpf test-twin test-netns test-hostile test-bench test-kernels test-cluster test-upkeep test-e2e
BENCHES := bandwidth control datapath keys podnet socket sockmap
PARTS := verify lint test-unit test-fuzz test-bpf test-twin test-golden test-oracle test-policyoracle test-apiserver test-chart test-netns test-hostile test-bench test-kernels test-cluster test-upkeep test-e2e

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the binaries into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS) -o bin/ ./cmd/...

.PHONY: image
image: ## build the container image for amd64 and arm64, its bills of materials and its chart into _output/image/; ARGS=-arch=amd64 for one architecture
	$(GO) run ./deploy/image $(ARGS)

.PHONY: release
release: ## make the release of the tag that this commit has, in _output/release: image, chart, programs, bills of materials, manifest, notes, sums
	rm -rf _output/release
	$(GO) run ./deploy/image -release $(ARGS)

.PHONY: generate
generate: ## compile the BPF programs, generate their Go types, format the C files
	@test/tools/toolchain.sh check
	$(GO) generate $(addprefix ./,$(GENERATED_IN))
	$(CLANG_FORMAT) -i $(FORMATTED)

.PHONY: verify
verify: ## check that everything generated and formatted is up to date
	@test/tools/verify.sh

.PHONY: lint
lint: ## check the Go code, for both architectures of the image, and the shape of the tree
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	@# Modules of their own, which keep what they compare with out of the agent.
	cd test/oracle && $(GO) vet ./... && $(GO) tool -modfile=../tools/go.mod staticcheck ./...
	cd test/policyoracle && $(GO) vet ./... && $(GO) tool -modfile=../tools/go.mod staticcheck ./...
	cd test/policysuites && $(GO) vet ./... && $(GO) tool -modfile=../tools/go.mod staticcheck ./...
	@# The image is for two architectures, and the tests run on one. Without optimization this takes a CPU minute, and seconds once cached.
	GOARCH=$(if $(filter arm64,$(shell $(GO) env GOARCH)),amd64,arm64) CGO_ENABLED=0 $(GO) build -gcflags='all=-N -l' -o /dev/null ./cmd/...
	$(GO) test -count=1 ./test/layout

.PHONY: demo
demo: build ## balance real connections on this machine, in its own namespaces (root; under a minute)
	$(GO) run ./test/demo bin/fairlead

.PHONY: test
test: ## run verify, lint and the tests below; root also runs what needs root, and installs clang
ifdef ROOT
	@MAKE="$(MAKE)" test/tools/parts.sh $(PARTS)
else
	@echo "Not root, so without $(PRIVILEGED), which create namespaces and load programs; sudo make test runs all."
	@MAKE="$(MAKE)" test/tools/parts.sh $(filter-out $(PRIVILEGED),$(PARTS))
endif

.PHONY: test-unit
test-unit: ## test the packages, each on its own
	@$(if $(RACE),,echo "There is no C compiler here, so the tests run without the race detector.")
	$(if $(ROOT),$(GO) run ./test/cluster build kube-proxy >/dev/null) # for nft, which the tests run
	$(GO) test $(addprefix ./,$(UNRACED) $(PURE) pkg/reconcile)
	$(GO) test $(RACE) $$($(GO) list ./... | grep -vE '/($(NOT_UNIT))(/|$$)|/($(subst $(space),|,$(UNRACED) $(PURE) pkg/reconcile))$$')
	@# With the race detector a tenth of its random histories, and not again what takes one thread long.
	$(GO) test $(RACE) -short -skip '^Test(WorkGrows|OverQuota|LiveDamage|HugeService)' ./pkg/reconcile

.PHONY: race
race: ## test with the race detector what make test runs without it (root; minutes)
	$(GO) test -race -count=1 -timeout 30m $(addprefix ./,$(UNRACED))

.PHONY: test-fuzz
test-fuzz: ## fuzz each parser that reads what others write, with 20,000 inputs: some ten seconds each
	test/tools/fuzz.sh 20000

.PHONY: test-bpf
test-bpf: ## test the packet programs, packet by packet (root)
	$(GO) test -count=1 -timeout 20m ./test/bpf/...

.PHONY: test-twin
test-twin: ## test the packet programs against a model of them, with 2*10^6 random packets, and honest packets against 10^6 of attackers (root)
	$(GO) test -count=1 -timeout 20m ./test/twin -packets 1000000

PACKETS := 100000000
PARSERS := 1000000

.PHONY: fuzz
fuzz: ## the same with more packets, from another seed: PACKETS, SEED (root); failures go to _output/twin. Then each parser with PARSERS inputs, some hour in all on two processors
	$(GO) test -count=1 -timeout 0 -v ./test/twin -run '^TestTwin$$' -packets $$(($(PACKETS) / 2)) -from $(or $(SEED),$(shell date +%s))
	$(GO) test -count=1 -timeout 0 -v ./test/twin -run '^TestNoninterference$$' -packets $(PACKETS) -from $(or $(SEED),$(shell date +%s))
	test/tools/fuzz.sh $(PARSERS)

.PHONY: test-golden
test-golden: ## test the path from manifests to maps
	$(GO) test -count=1 ./test/golden/...

.PHONY: test-oracle
test-oracle: ## test against the code of Kubernetes
	cd test/oracle && $(GO) test -count=1 -v ./...

CASES := 1000000

.PHONY: test-policyoracle
test-policyoracle: ## test verdicts of policies against kube-network-policies and cyclonus, with CASES random packets; SEED selects other ones
	cd test/policyoracle && CASES=$(CASES) $(GO) test -count=1 -v ./...

.PHONY: test-netns
test-netns: ## test with real sockets in network namespaces (root); writes _output/podnet/matrix.txt: by which address each end sees the other
	@rm -f _output/podnet/matrix.txt
	$(GO) run ./test/cluster build kube-proxy >/dev/null # for nft, which the tests run
ifdef ROOT
	@test/tools/programs.sh redis >/dev/null
endif
	FAIRLEAD_REQUIRE="$(FAIRLEAD_REQUIRE) $(if $(ROOT),programs)" $(GO) test -count=1 -timeout 30m ./test/rig/... ./test/netns/... ./test/podnet/... ./test/sockmap/...
	@if [ -e _output/podnet/matrix.txt ]; then cat _output/podnet/matrix.txt; fi

.PHONY: test-hostile
test-hostile: ## attack nodes that run, as pods, hosts and tenants do, and show that each attack fails (root)
	$(GO) test -count=1 -timeout 10m ./test/hostile/...

CYCLES := 10000

.PHONY: soak
soak: ## add and remove pods CYCLES times, stress connections past TCP, and run third-party programs over them (root)
	$(GO) test -count=1 -timeout 0 -v ./test/podnet -run TestChurn -cycles $(CYCLES)
	$(GO) test -count=1 -timeout 0 -v ./test/sockmap -run TestTorture -torture 10m
	test/tools/programs.sh
	FAIRLEAD_REQUIRE="$(FAIRLEAD_REQUIRE) programs" $(GO) test -count=1 -timeout 0 -v ./test/sockmap/programs -all -load 20s

.PHONY: test-apiserver
test-apiserver: ## test against a real API server, which is built first
	$(GO) run ./test/apiserver/build
	$(GO) test $(RACE) -count=1 -p 1 -timeout 30m ./test/apiserver/... ./pkg/source/kube/...

.PHONY: test-chart
test-chart: ## test the chart with helm, promtool and a real API server, which are built or fetched first
	$(GO) run ./test/apiserver/build
	test/tools/prometheus.sh
	FAIRLEAD_REQUIRE="$(FAIRLEAD_REQUIRE) $(if $(ROOT),prometheus)" $(GO) test -count=1 ./test/chart/...

.PHONY: test-kernels
test-kernels: ## test on Debian's kernels in virtual machines: KERNELS="6.1 7.2" (all that are pinned), ONLY=netns, SHORT=yes (what differs little on one only)
	$(GO) run ./test/kernels -fetch $(KERNELS)
	FAIRLEAD_REQUIRE="$(FAIRLEAD_REQUIRE) kernels" $(GO) test -count=1 ./test/kernels/...
	$(GO) run ./test/kernels $(if $(SHORT),-short) $(if $(ONLY),-only "$(ONLY)") $(KERNELS)

.PHONY: pin-kernels
pin-kernels: ## pin the newest package of every kernel that test-kernels boots
	@mkdir -p _output
	$(GO) run ./test/kernels -pin >_output/pins.txt
	mv _output/pins.txt test/kernels/debian/pins.txt

.PHONY: test-cluster
test-cluster: ## test the code that starts the cluster below (root)
	$(GO) run ./test/cluster build
	$(GO) test -count=1 -timeout 15m $$($(GO) list ./test/cluster/... | grep -v /upkeep)

.PHONY: test-upkeep
test-upkeep: ## upgrade, lose and remove the agents of a cluster and reboot a node while requests are sent: the core of "make upkeep" (root)
	$(GO) run ./test/cluster build >/dev/null
	$(GO) test -count=1 -timeout 15m ./test/cluster/upkeep -run '^TestUpkeep$$' -skip '^TestUpkeep$$/^(Prometheus|no_API_server)$$' -family $(FAMILY)

.PHONY: upkeep
upkeep: ## install, upgrade, lose and remove the agents of a cluster while requests are sent: FAMILY, ARGS=-thorough (root; minutes)
	$(GO) run ./test/cluster build kube-proxy >/dev/null
	$(GO) run ./test/cluster build
	test/tools/prometheus.sh
	FAIRLEAD_REQUIRE="$(FAIRLEAD_REQUIRE) prometheus" $(GO) test -count=1 -timeout 60m -v ./test/cluster/upkeep -skip TestKubeadm -family $(FAMILY) $(ARGS)

.PHONY: kubeadm
kubeadm: ## create a cluster with kubeadm and install the agent on it, with the commands of docs/quick-start.md (root; minutes)
	$(GO) run ./test/cluster build kubeadm >/dev/null
	$(GO) run ./test/cluster build
	$(GO) test -count=1 -timeout 30m -v ./test/cluster/upkeep -run TestKubeadm

.PHONY: test-bench
test-bench: ## test the code of the benchmarks, with the kube-proxy that they compare with (root)
	$(GO) run ./test/cluster build kube-proxy >/dev/null
	$(GO) test -count=1 -p 1 -timeout 15m ./test/bench/...

NODES := 3
FAMILY := ipv4
PROXY := none
# By default the agent provides the pod network, as in the chart, unless another proxy serves Services.
CNI = $(if $(filter none,$(PROXY)),none,bridge)
AGENT :=
SET :=
ROUTING :=
PREFIX := fl

# The agent's image, for this machine's architecture only.
AGENT_IMAGE := _output/cluster/fairlead.tar

.PHONY: cluster
cluster: ## start a real Kubernetes on this machine: NODES, FAMILY, CNI (bridge for Debian's plugin instead of the agent's pod network), ROUTING (of the agent's pod network), PROXY, SET (values of the chart), AGENT (options of the agent), PREFIX (root); test/cluster/README.md
ifeq ($(PROXY),none)
	$(GO) run ./deploy/image -arch=$(shell $(GO) env GOARCH) -output $(dir $(AGENT_IMAGE))
	$(GO) run ./test/cluster up -prefix $(PREFIX) -nodes $(NODES) -family $(FAMILY) -cni $(CNI) -image $(AGENT_IMAGE)
	$(GO) run ./test/cluster install -prefix $(PREFIX) -chart charts/fairlead -image $(AGENT_IMAGE) -routing "$(ROUTING)" $(addprefix -set ,$(SET)) -- $(AGENT)
else
	$(GO) run ./test/cluster up -prefix $(PREFIX) -nodes $(NODES) -family $(FAMILY) -cni $(CNI) -proxy $(PROXY)
endif

.PHONY: cluster-down
cluster-down: ## stop it (root)
	$(GO) run ./test/cluster down -prefix $(PREFIX)

FOCUS := \[sig-network\]
OUT := _output/e2e
SHORT :=

.PHONY: e2e
e2e: ## run the tests of Kubernetes against the cluster: FOCUS (default: all network tests), PROXY, PREFIX (root); writes OUT=_output/e2e
	$(GO) run ./test/cluster/e2e -prefix $(PREFIX) -proxy $(PROXY) -out $(OUT) $(if $(SHORT),-short,-focus '$(FOCUS)')

# One prefix for each checkout: checkouts do not collide, and the next run finds what an interrupted one left.
E2E_PREFIX = e$(shell pwd | cksum | cut -c1-6)

# Clusters that are each started, tested and stopped. Later variables win.
JUDGED := e2e-ipv4 e2e-dual e2e-ipv6 e2e-zones e2e-kube-proxy
test-e2e: JUDGE := OUT=_output/e2e SHORT=yes
e2e-ipv4: JUDGE := FAMILY=ipv4
e2e-dual: JUDGE := FAMILY=dual ROUTING=native
e2e-ipv6: JUDGE := FAMILY=ipv6
e2e-zones: JUDGE := NODES=6 FOCUS='Traffic Distribution'
e2e-kube-proxy: JUDGE := FAMILY=dual CNI=bridge PROXY=nftables

.PHONY: test-e2e $(JUDGED)
test-e2e: ## start a cluster with this agent, without kube-proxy or another CNI plugin, run the short list of Kubernetes' tests, stop it (root)
e2e-ipv4: ## the same with all network tests (root; 20 minutes each); also e2e-dual, e2e-ipv6, e2e-zones (six nodes, in zones), and e2e-kube-proxy to compare with; writes _output/e2e-ipv4 and so on
test-e2e $(JUDGED):
	@set -- PREFIX=$(E2E_PREFIX) CNI=none ROUTING=vxlan OUT=_output/$@ "SET=policies=enforce $(SET)" $(JUDGE); \
		$(MAKE) --no-print-directory cluster "$$@" && $(MAKE) --no-print-directory e2e "$$@"; how=$$?; \
		$(GO) run ./test/cluster down -prefix $(E2E_PREFIX) $$([ $$how != 0 ] || echo -purge) && exit $$how

# Where e2e-policy leaves what the suites say.
POLICY_OUT := _output/e2e-policy

.PHONY: e2e-policy
e2e-policy: ## start a cluster of two families that enforces policies, run Kubernetes' tests of NetworkPolicy, the conformance suite of ClusterNetworkPolicy and cyclonus' cases, stop it (root; an hour)
	@mkdir -p $(POLICY_OUT)
	@set -- PREFIX=$(E2E_PREFIX) CNI=none ROUTING=native FAMILY=dual "SET=policies=enforce $(SET)"; \
		$(MAKE) --no-print-directory cluster "$$@" || exit 1; how=0; \
		$(MAKE) --no-print-directory e2e "$$@" OUT=$(POLICY_OUT)/netpol FOCUS='\[sig-network\] Netpol' || how=1; \
		cd test/policysuites; \
		$(GO) test -count=1 -timeout 40m -v ./conformance -prefix $(E2E_PREFIX) >../../$(POLICY_OUT)/conformance.log || how=1; \
		$(GO) test -count=1 -timeout 60m -v ./cyclonus -prefix $(E2E_PREFIX) >../../$(POLICY_OUT)/cyclonus.log || how=1; \
		grep -E '^ *--- FAIL|^(ok|FAIL)' ../../$(POLICY_OUT)/conformance.log ../../$(POLICY_OUT)/cyclonus.log; \
		cd ../..; $(GO) run ./test/cluster down -prefix $(E2E_PREFIX) $$([ $$how != 0 ] || echo -purge) && exit $$how

RATED := 6.1 7.2

.PHONY: bench-bandwidth
bench-bandwidth: ## measure what a rate limit does to a pod's requests, compared with HTB and TBF, on Debian's kernels in virtual machines: RATED="6.1 7.2", ROW; writes _output/bench/bandwidth.json and .svg
	@mkdir -p _output/bench/bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -buildvcs=$(VCS) -o _output/bench/bin/ ./cmd/... ./test/bench/bandwidth
	$(GO) run ./test/kernels -fetch $(RATED)
	_output/bench/bin/bandwidth -kernels "$(RATED)" $(if $(ROW),-only "$(ROW)") -output _output/bench/bandwidth.json

.PHONY: bench-clusterpods
bench-clusterpods: ## measure what the pods of all nodes cost an agent while policies name them (root); writes _output/bench/clusterpods.json
	@mkdir -p _output/bench/bin
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS) -o _output/bench/bin/ ./cmd/...
	$(GO) run ./test/bench/clusterpods -binaries _output/bench/bin -output _output/bench/clusterpods.json

.PHONY: bench-control
bench-control: ## measure the control path; ROW=policy for a part (root); writes _output/bench/control.json
	@mkdir -p _output/bench
	$(GO) run ./test/bench/control $(if $(ROW),-only "$(ROW)") -output _output/bench/control.json

.PHONY: bench-datapath
bench-datapath: ## compare the packet programs with minimal ones and with kube-proxy; ROW=rate for a part (root)
	@mkdir -p _output/bench
	$(GO) run ./test/cluster build kube-proxy >/dev/null
	$(GO) run ./test/bench/datapath $(if $(ROW),-only "$(ROW)") -output _output/bench/datapath.json

.PHONY: bench-keys
bench-keys: ## compare wide and narrow flow keys (root); writes _output/bench/keys.json
	@mkdir -p _output/bench
	$(GO) run ./test/bench/keys -output _output/bench/keys.json

.PHONY: bench-podnet
bench-podnet: ## compare the pod network with the host's stack and with devices set up by hand; ROW=stream for a part (root)
	@mkdir -p _output/bench/bin
	$(GO) run ./test/cluster build kube-proxy >/dev/null
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS) -o _output/bench/bin/ ./cmd/... ./test/podnet/byhand
	$(GO) run ./test/bench/podnet -binaries _output/bench/bin $(if $(ROW),-only "$(ROW)") -output _output/bench/podnet.json

.PHONY: bench-socket
bench-socket: ## compare the socket programs with kube-proxy (root); writes _output/bench/socket.json
	@mkdir -p _output/bench
	$(GO) run ./test/cluster build kube-proxy >/dev/null
	$(GO) run ./test/bench/socket -output _output/bench/socket.json

.PHONY: bench-sockmap
bench-sockmap: ## measure what going past TCP does to requests, streams and proxies of a node; ROW="request, pods" for a part (root); writes _output/bench/sockmap.json and .svg
	@mkdir -p _output/bench/bin
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS) -o _output/bench/bin/ ./cmd/...
	$(GO) run ./test/bench/sockmap -binaries _output/bench/bin $(if $(ROW),-only "$(ROW)") -output _output/bench/sockmap.json

.PHONY: bench
bench: ## run every benchmark; writes _output/bench/all.json and a picture of each
	$(GO) run ./test/bench/all -make "$(MAKE)" -output _output/bench $(BENCHES)

.PHONY: bench-compare
bench-compare: ## compare two runs: OLD=folder NEW=folder, STRICT=yes to fail if something got worse
	$(GO) run ./test/bench/compare $(if $(STRICT),-strict) "$(OLD)" "$(NEW)"

.PHONY: clean
clean: ## remove bin/ and _output/
	rm -rf bin _output
