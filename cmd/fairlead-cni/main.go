// Command fairlead-cni is the CNI plugin: a container runtime calls it to attach a container to the
// network, and to detach it. It makes the device, and asks the agent for addresses. It links
// little, since it starts for every pod.
package main

import (
	"os"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	// A thread that enters a pod's namespace stays in it. The first thread must not be one of them:
	// it cannot end, and /proc/self shows it.
	runtime.LockOSThread()
	functions := skel.CNIFuncs{Add: add, Del: del, Check: check, GC: collect, Status: status}
	versions := version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
	if err := skel.PluginMainFuncsWithError(functions, versions, "The CNI plugin of fairlead"); err != nil {
		_ = err.Print() // stdout is gone, so there is no one to tell
		os.Exit(1)
	}
}
