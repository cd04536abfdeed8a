// Command fairlead-cni is what a container runtime calls to attach a container to the network, and to detach it. It makes
// the device; addresses are the agent's, which it asks. It starts for every pod, so it links little.
package main

import (
	"os"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	// Threads that enter a pod's namespace stay in it. The first must not be one of them: it cannot end, and is what /proc/self shows.
	runtime.LockOSThread()
	functions := skel.CNIFuncs{Add: add, Del: del, Check: check, GC: collect, Status: status}
	versions := version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
	if err := skel.PluginMainFuncsWithError(functions, versions, "The CNI plugin of fairlead"); err != nil {
		_ = err.Print() // there is nobody else to tell
		os.Exit(1)
	}
}
