package pinned

// program is a row of what can be built.
type program struct {
	name   string
	module string // whose version is the program's
	pkg    string
	test   bool
}

func programs() []program {
	return []program{
		{name: "etcd", module: "go.etcd.io/etcd/server/v3", pkg: "go.etcd.io/etcd/server/v3"},
		{name: "kube-apiserver", module: kubernetes, pkg: kubernetes + "/cmd/kube-apiserver"},
		{name: "kube-controller-manager", module: kubernetes, pkg: kubernetes + "/cmd/kube-controller-manager"},
		{name: "kube-scheduler", module: kubernetes, pkg: kubernetes + "/cmd/kube-scheduler"},
		{name: "kubelet", module: kubernetes, pkg: kubernetes + "/cmd/kubelet"},
		{name: "kube-proxy", module: kubernetes, pkg: kubernetes + "/cmd/kube-proxy"},
		{name: "kubectl", module: kubernetes, pkg: kubernetes + "/cmd/kubectl"},
		{name: "coredns", module: "github.com/coredns/coredns", pkg: "./coredns"},
		{name: "agnhost", module: kubernetes, pkg: kubernetes + "/test/images/agnhost"},
		{name: "regression-issue-74839", module: kubernetes, pkg: kubernetes + "/test/images/regression-issue-74839"},
		{name: "ginkgo", module: "github.com/onsi/ginkgo/v2", pkg: "github.com/onsi/ginkgo/v2/ginkgo"},
		{name: "e2e.test", module: kubernetes, pkg: "./e2e", test: true},
	}
}

// Names returns the names of all programs that can be built.
func Names() []string {
	var names []string
	for _, p := range programs() {
		names = append(names, p.name)
	}
	return names
}
