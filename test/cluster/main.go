// Command cluster runs a real Kubernetes of several nodes on this machine, in namespaces. README.md tells how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"fairlead.io/fairlead/test/apiserver/pinned"
	"fairlead.io/fairlead/test/cluster/addresses"
	"fairlead.io/fairlead/test/cluster/node"
	"fairlead.io/fairlead/test/cluster/plan"
)

const usage = `usage: cluster COMMAND [-prefix NAME] ...

  up [-nodes N] [-family ipv4|dual|ipv6] [-cni bridge|none] [-proxy none|iptables|nftables] [-bare] [-image FILE]...
                             -bare: nodes with a runtime and no Kubernetes, for who starts one by other means
  install -chart DIR -image FILE [-routing native|vxlan] [-set KEY=VALUE]... [OPTION...]
                             install the agent by its chart, with options of the agent, or change how it is installed
  down [-purge]              end the cluster; with -purge also forget its unpacked images and logs
  build [PROGRAM...]         build the programs and images that a cluster is made of, or the named programs;
                             for kube-proxy, install what it calls
  import FILE...             import image archives on every node
  apiserver stop|start       end the API server as if its machine were lost, and start it again
  reboot NODE                end a node as a loss of power does, and start it again
  kubectl ARGUMENT...        run kubectl as an administrator
  helm ARGUMENT...           run helm likewise
  exec PART COMMAND...       run a command in node1, ..., control, outside or router
  env                        print where things are
`

func main() {
	err := run(os.Args[1:])
	var exit *exec.ExitError
	if errors.As(err, &exit) && slices.Contains([]string{"exec", "kubectl", "helm"}, os.Args[1]) {
		os.Exit(exit.ExitCode()) // the command has told why
	}
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "cluster:", err)
	var wrong usageError
	if errors.As(err, &wrong) {
		fmt.Fprint(os.Stderr, usage)
	}
	os.Exit(1)
}

// usageError is a command line that this program does not understand.
type usageError string

func (e usageError) Error() string { return string(e) }

func run(args []string) error {
	if len(args) == 3 && args[0] == nodeInit {
		return node.Init(args[1], args[2], os.Stdout)
	}
	if len(args) == 4 && args[0] == giveAddresses {
		return addresses.Run(context.Background(), args[1], args[2], plan.Family(args[3]))
	}
	commands := map[string]func(*flag.FlagSet, []string) error{
		"up": runUp, "down": runDown, "install": runInstall, "build": runBuild, "import": runImport,
		"apiserver": runAPIServer, "reboot": runReboot, "kubectl": runKubectl, "helm": runHelm, "exec": runExec, "env": runEnv,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return usageError("which command?")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return commands[args[0]](flags, args[1:])
}

// parse parses flags and returns the cluster that they name.
func parse(flags *flag.FlagSet, args []string) (*Cluster, error) {
	prefix := flags.String("prefix", "fl", "")
	if err := flags.Parse(args); err != nil {
		return nil, usageError(err.Error())
	}
	// It becomes part of file names.
	if !regexp.MustCompile(`^[a-z][a-z0-9]{0,7}$`).MatchString(*prefix) {
		return nil, fmt.Errorf("prefix %q: up to eight letters and digits, a letter first", *prefix)
	}
	return openCluster(*prefix)
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string         { return strings.Join(*l, " ") }
func (l *list) Set(value string) error { *l = append(*l, value); return nil }

func runUp(flags *flag.FlagSet, args []string) error {
	var want Options
	var images list
	flags.IntVar(&want.Nodes, "nodes", 3, "")
	family := flags.String("family", string(plan.IPv4), "")
	flags.StringVar(&want.CNI, "cni", "bridge", "")
	flags.StringVar(&want.Proxy, "proxy", "none", "")
	flags.BoolVar(&want.Bare, "bare", false, "")
	flags.Var(&images, "image", "")
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	want.Family = plan.Family(*family)
	return c.up(want, images, os.Stderr)
}

func runDown(flags *flag.FlagSet, args []string) error {
	purge := flags.Bool("purge", false, "")
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	return c.down(*purge)
}

func runInstall(flags *flag.FlagSet, args []string) error {
	var a Agent
	flags.StringVar(&a.Chart, "chart", "", "")
	flags.StringVar(&a.Image, "image", "", "")
	flags.StringVar(&a.Routing, "routing", "", "")
	flags.Var((*list)(&a.Sets), "set", "")
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	if a.Chart == "" || a.Image == "" {
		return usageError("which chart, and which image?")
	}
	a.Options = flags.Args()
	return c.install(a, os.Stderr)
}

func runBuild(flags *flag.FlagSet, args []string) error {
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	if flags.NArg() == 0 {
		path, err := c.prepare(Options{Proxy: "none"}, os.Stderr)
		if err == nil {
			fmt.Println(path)
		}
		return err
	}
	set, err := pinned.Find(flags.Args()...)
	if err != nil {
		return err
	}
	if err := set.Build(os.Stderr); err != nil {
		return err
	}
	if slices.Contains(flags.Args(), "kube-proxy") {
		if err := install(missingPackages(proxyTools()), os.Stderr); err != nil {
			return err
		}
	}
	for _, b := range set.All() {
		fmt.Println(b.Path)
	}
	return nil
}

func runImport(flags *flag.FlagSet, args []string) error {
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	return c.importEverywhere(flags.Args())
}

func runAPIServer(flags *flag.FlagSet, args []string) error {
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	if c.Bare {
		return errors.New("stop or start the API server: the nodes are bare, so it is somebody else's")
	}
	switch what := flags.Arg(0); what {
	case "stop":
		return c.stopAPIServer()
	case "start":
		return c.startAPIServer()
	default:
		return usageError(fmt.Sprintf("%q an API server?", what))
	}
}

func runReboot(flags *flag.FlagSet, args []string) error {
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	return c.reboot(flags.Arg(0))
}

func runKubectl(flags *flag.FlagSet, args []string) error {
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	return c.exec("control", append([]string{c.program("kubectl")}, flags.Args()...))
}

func runHelm(flags *flag.FlagSet, args []string) error {
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	cmd, err := c.helm(flags.Args()...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return c.netns("control").Run(cmd)
}

func runExec(flags *flag.FlagSet, args []string) error {
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	if flags.NArg() < 2 {
		return usageError("which part, and which command?")
	}
	return c.exec(flags.Arg(0), flags.Args()[1:])
}

func runEnv(flags *flag.FlagSet, args []string) error {
	c, err := parse(flags, args)
	if err != nil {
		return err
	}
	fmt.Printf("STATE=%s\nKUBECONFIG=%s\nLOGS=%s\nNETNS=%s\n", c.dir, c.kubeconfig(), c.path("logs"), netnsPath(c.name("")))
	fmt.Printf("NODES=%d\nFAMILY=%s\nKUBERNETES=%s\n", c.Nodes, c.Family, c.Kubernetes)
	fmt.Printf("CGROUPS=%s\nAPISERVER=%s\n", c.cgroups.Dir(c.name("")), apiServer(c.Family))
	return nil
}

// buildPrograms builds what a cluster is made of.
func buildPrograms(proxy bool, log io.Writer) error {
	names := programNames()
	if proxy {
		names = append(names, "kube-proxy")
	}
	set, err := pinned.Find(names...)
	if err != nil {
		return err
	}
	return set.Build(log)
}
