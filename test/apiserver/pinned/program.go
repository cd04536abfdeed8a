package pinned

// program describes a program that can be built.
type program struct {
	name   string
	module string // the module whose version is the program's
	pkg    string
	test   bool
	minor  bool // it follows KUBERNETES_MINOR
}

// kubernetes is the module of Kubernetes' own programs.
const kubernetes = "k8s.io/kubernetes"

func programs() []program {
	return []program{
		{name: "etcd", module: "go.etcd.io/etcd/server/v3", pkg: "go.etcd.io/etcd/server/v3"},
		{name: "kube-apiserver", module: kubernetes, pkg: kubernetes + "/cmd/kube-apiserver", minor: true},
		{name: "kube-controller-manager", module: kubernetes, pkg: kubernetes + "/cmd/kube-controller-manager", minor: true},
		{name: "kube-scheduler", module: kubernetes, pkg: kubernetes + "/cmd/kube-scheduler", minor: true},
		{name: "kubelet", module: kubernetes, pkg: kubernetes + "/cmd/kubelet", minor: true},
		{name: "kube-proxy", module: kubernetes, pkg: kubernetes + "/cmd/kube-proxy", minor: true},
		{name: "kubeadm", module: kubernetes, pkg: kubernetes + "/cmd/kubeadm", minor: true},
		{name: "kubectl", module: kubernetes, pkg: kubernetes + "/cmd/kubectl", minor: true},
		{name: "coredns", module: "github.com/coredns/coredns", pkg: "./coredns"},
		{name: "agnhost", module: kubernetes, pkg: kubernetes + "/test/images/agnhost", minor: true},
		{name: "regression-issue-74839", module: kubernetes, pkg: kubernetes + "/test/images/regression-issue-74839", minor: true},
		{name: "ginkgo", module: "github.com/onsi/ginkgo/v2", pkg: "github.com/onsi/ginkgo/v2/ginkgo", minor: true}, // must match e2e.test, with which it talks
		{name: "e2e.test", module: kubernetes, pkg: "./e2e", test: true, minor: true},
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
