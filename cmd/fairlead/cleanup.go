package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/agent/acceleration"
	"fairlead.io/fairlead/pkg/agent/cluster"
	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/bigtcp"
	"fairlead.io/fairlead/pkg/cni/install"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/pkg/sysctl"
)

// removal is what cleanup has removed.
type removal struct {
	Files []string `json:"files"` // of the pod network
	Root  string   `json:"root"`
	Links []string `json:"links"`
	Maps  []string `json:"maps"`
	// HandedOver is how many connections netfilter has taken over.
	HandedOver int `json:"handedOver"`
	// Taken is how many it has not, because it had given their ports to other connections.
	Taken int `json:"taken"`
	// Lost is how many connections could not be handed over, and LostKinds says which kinds they
	// are.
	Lost      int    `json:"lost"`
	LostKinds string `json:"lostKinds,omitempty"`
	// Forwarded is how many more are lost if another node forwards them here.
	Forwarded int `json:"forwarded"`
	// Routes is how many routes to pods on other nodes there were.
	Routes int `json:"routes"`
	// Left are the devices of running pods, which are not touched.
	Left []podnet.Device `json:"left"`
	// Settings are the kernel settings that were restored to their values before "fairlead init".
	Settings []string `json:"settings"`
	// Queues are the devices whose queues were restored.
	Queues []string `json:"queues"`
	// Devices are the devices whose sizes of TCP packets were restored to those before --big-tcp.
	Devices []string `json:"devices"`
}

func newCleanupCommand(inv *invocation) *cobra.Command {
	var force bool
	var plugins string
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove fairlead from this node: what it installed, its programs and its maps",
		Long: `Remove fairlead from this node. It first removes the container runtime's configuration, so that no more pods start with
it, then the plugin, as far as these are fairlead's, and then the programs, the maps and the records of addresses. After
that, nothing carries connections to Services, unless something else does. The command refuses to run while an agent
runs, because it would take away what the agent works on.

Where netfilter tracks connections, the TCP and UDP connections that fairlead translates are handed over to it, so that they
continue under another proxy's rules. Some cannot be handed over: those with direct server return, those that fairlead's tunnel
carries to a backend, and SCTP. They break, unless --drain says how long to wait for them to end. While the command waits, new
connections are left to the other proxy's rules, and programs, maps, tunnel and routes stay in place. After that everything
is removed, and the command fails if some of these connections had not ended. If an agent starts meanwhile, or on
SIGTERM, the command stops waiting and removes nothing more; it may be repeated. Once it begins to remove, no agent can
start until it is done.

Connections that bypass TCP return to TCP first. If a process has not read the data that bypassed TCP within half a
minute, its map stays, and the error says so.

The routes and the tunnel to pods on other nodes are removed too. Kernel settings that "fairlead init" changed are
restored, unless someone changed them since. The mounts stay. Devices of running pods stay, with their addresses and
routes, and are listed. With a --state-dir other than
` + config.DefaultStateDir + `, as trials use, the runtime's directories are left alone unless they are named.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			alive, err := api.Alive(cfg.SocketPath())
			if err != nil && !force {
				return fmt.Errorf("%w; use --force to remove everything anyway", err)
			}
			if alive && !force {
				return fmt.Errorf("an agent runs at %s: stop it first, or use --force", cfg.SocketPath())
			}
			if force && limit != 0 || limit < 0 {
				return config.UsageError{Err: errors.New("--drain and --force exclude each other, and --drain is not negative")}
			}
			removed, err := remove(cfg, plugins, force, func() (flowtable.Stuck, error) { return drain(cmd.Context(), cfg, limit, inv.Stderr) })
			if err == nil && limit > 0 && removed.Lost > 0 {
				err = fmt.Errorf("%s had not ended after %v and will break", removed.LostKinds, limit)
			} else if err != nil {
				err = fmt.Errorf("clean up: %w; it may be repeated", err)
			}
			if removed == nil {
				return err
			}
			return errors.Join(err, inv.print(removed, removed.write))
		},
	}
	config.AddFlags(cmd.Flags(), "cni-conf-dir", "cni-conf-name")
	cmd.Flags().Lookup("cni-conf-dir").Usage = "directory in which the container runtime looks for networks (default " + install.ConfigurationDir + ")"
	cmd.Flags().StringVar(&plugins, pluginDirFlag, "", "directory in which it looks for plugins (default "+install.PluginDir+")")
	cmd.Flags().BoolVar(&force, "force", false, "remove everything even while an agent runs")
	cmd.Flags().DurationVar(&limit, "drain", 0, "how long to wait for connections that cannot be handed over, such as 10m")
	return cmd
}

// remove removes everything: first what other programs rely on and, after drain, what connections
// need. From then on no agent can start, unless one runs that force ignores. It continues after
// what it cannot remove.
func remove(cfg *config.Config, plugins string, force bool, drain func() (flowtable.Stuck, error)) (*removal, error) {
	removed, err := pinnedNames(filepath.Dir(mapsDir(cfg)))
	if err != nil {
		return nil, err
	}
	left := removed.removeInstalled(cfg, plugins)
	lost, err := drain()
	if err != nil {
		return nil, errors.Join(left, err)
	}
	claim, err := api.NewClaim(cfg.SocketPath())
	if err != nil && !force {
		return nil, errors.Join(left, err)
	}
	if claim != nil {
		defer claim.Close() // when it runs, a lock that nobody else needs has been removed
	}
	removed.Lost, removed.Forwarded, lost.Forwarded = lost.Sure(), lost.Forwarded, 0
	if removed.Lost > 0 {
		removed.LostKinds = stuckWords(lost)
	}
	stays, err := removed.removeDatapath(cfg)
	left = errors.Join(left, stays, err)
	if err != nil {
		return nil, left
	}
	left = errors.Join(left, removed.restore(cfg))
	if claim != nil {
		left = errors.Join(left, removed.removeState(cfg, claim))
	}
	return removed, left
}

// removeDatapath removes programs, maps and routes. stays says what could not be removed, err what
// kept it from continuing.
func (r *removal) removeDatapath(cfg *config.Config) (stays, err error) {
	_, stays = sockmap.Remove(cfg.BPFFS)
	stays = errors.Join(stays, datapath.EndRates(cfg.BPFFS, queues.Drain))
	over, err := datapath.Cleanup(cfg.BPFFS)
	if err != nil {
		return stays, err
	}
	r.HandedOver, r.Taken, stays = over.Connections, over.Taken, errors.Join(stays, over.Left)
	r.Routes, err = fabric.Remove()
	return stays, err
}

// restore restores the kernel's settings, and lists the devices that pods continue to use.
func (r *removal) restore(cfg *config.Config) error {
	var settings, devices, queued, listed error
	r.Settings, settings = sysctl.Restore(sysctl.Root, cfg.StateDir)
	r.Devices, devices = bigtcp.Restore(cfg.StateDir)
	r.Queues, queued = queues.Restore()
	records, forgotten := podnet.Forget(cfg.StateDir)
	r.Files = append(r.Files, records...)
	if forgotten == nil {
		r.Left, listed = podnet.Devices()
	}
	return errors.Join(settings, devices, queued, forgotten, listed)
}

// removeState removes the agent's directory, unless it holds files of others.
func (r *removal) removeState(cfg *config.Config, claim *api.Claim) error {
	for _, file := range []string{podnetwork.PluginSocket(cfg), cluster.ServersFile(cfg), podnetwork.BBRFile(cfg), acceleration.File(cfg), life.StartsFile(cfg.StateDir)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a file of the agent: %w", err)
		}
	}
	if err := claim.Remove(); err != nil {
		return err
	}
	err := os.Remove(cfg.StateDir)
	switch {
	case err == nil:
		r.Files = append(r.Files, cfg.StateDir)
	// EBUSY: the directory is a mount point.
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EBUSY):
	default:
		return fmt.Errorf("remove the agent's directory: %w", err)
	}
	return nil
}

// removeInstalled removes the runtime's configuration, and then the plugin that it names.
func (r *removal) removeInstalled(cfg *config.Config, plugins string) error {
	configurations := cfg.CNIConfDir
	if cfg.StateDir == config.DefaultStateDir {
		configurations, plugins = cmp.Or(configurations, install.ConfigurationDir), cmp.Or(plugins, install.PluginDir)
	}
	if configurations != "" {
		gone, err := install.RemoveConfiguration(configurations, cfg.CNIConfName, podnetwork.PluginSocket(cfg))
		if err != nil {
			return err
		}
		if gone {
			r.Files = append(r.Files, filepath.Join(configurations, cfg.CNIConfName))
		}
	}
	if plugins == "" {
		return nil
	}
	gone, err := install.RemovePlugin(plugins)
	if gone {
		r.Files = append(r.Files, filepath.Join(plugins, install.PluginName))
	}
	return err
}

// pinnedNames lists what is pinned under root.
func pinnedNames(root string) (*removal, error) {
	names := func(dir string) ([]string, error) {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list pins: %w", err)
		}
		list := []string{}
		for _, entry := range entries {
			if !entry.IsDir() {
				list = append(list, entry.Name())
			}
		}
		return list, nil
	}
	links, err := names("links")
	if err != nil {
		return nil, err
	}
	devices, err := names("devices")
	if err != nil {
		return nil, err
	}
	maps, err := names("maps")
	return &removal{Files: []string{}, Root: root, Links: append(links, devices...), Maps: maps}, err
}

func (r *removal) write(w io.Writer) error {
	if r.HandedOver > 0 {
		fmt.Fprintf(w, "netfilter goes on with %d connections\n", r.HandedOver)
	}
	if r.Taken > 0 {
		fmt.Fprintf(w, "%d connections may be reset: netfilter has given their ports to others meanwhile\n", r.Taken)
	}
	if r.Lost > 0 {
		fmt.Fprintf(w, "%s cannot be handed over and will break; --drain waits for them to end\n", r.LostKinds)
	}
	if r.Forwarded > 0 {
		fmt.Fprintf(w, "%d connections will break if another node forwards them here with direct server return; --drain waits for them too\n",
			r.Forwarded)
	}
	if r.Routes > 0 {
		fmt.Fprintf(w, "removed %d routes to pods of other nodes\n", r.Routes)
	}
	for _, path := range r.Files {
		fmt.Fprintf(w, "removed %s\n", path)
	}
	for _, text := range r.Settings {
		fmt.Fprintf(w, "put back %s\n", text)
	}
	for _, name := range r.Devices {
		fmt.Fprintf(w, "put back the size of TCP packets of device %s\n", name)
	}
	for _, name := range r.Queues {
		fmt.Fprintf(w, "put back the queue of device %s\n", name)
	}
	for _, name := range r.Links {
		fmt.Fprintf(w, "detached program %s\n", name)
	}
	for _, name := range r.Maps {
		fmt.Fprintf(w, "removed map %s\n", name)
	}
	if len(r.Links)+len(r.Maps) == 0 {
		fmt.Fprintf(w, "nothing was pinned under %s\n", r.Root)
	} else {
		fmt.Fprintf(w, "%d programs and %d maps are gone from %s\n", len(r.Links), len(r.Maps), r.Root)
	}
	if len(r.Left) == 0 {
		return nil
	}
	for _, d := range r.Left {
		fmt.Fprintf(w, "left device %s of pod %s\n", d.Name, orNone(d.Pod))
	}
	_, err := fmt.Fprintf(w, "%d pods keep their devices, addresses and routes, but other machines may no longer reach them: delete the pods, and the node's next "+
		"network will create them again. Remove devices that remain with \"ip link del\"\n", len(r.Left))
	return err
}
