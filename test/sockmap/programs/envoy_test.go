package programs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestEnvoy does the same as TestMesh through real Envoys, some of which parse HTTP and some of
// which only forward bytes; with the latter too, each byte is found on every hop.
func TestEnvoy(t *testing.T) {
	if !*all {
		t.Skip("-all runs it")
	}
	for _, version := range []int{1, 2} {
		for _, filter := range []string{"tcp", "http"} {
			for _, six := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s,HTTP/%d,six=%v", filter, version, six), func(t *testing.T) {
					w := newThreePods(t)
					config := filepath.Join(w.directory(sidecar), "envoy.json")
					content, err := json.Marshal(envoyConfig(filter == "http"))
					w.Must(err)
					w.Must(os.WriteFile(config, content, 0o644))
					for _, pod := range []int{here, there} {
						w.intercept(pod)
						w.start(pod, sidecar, "envoy", "-c", config, "--concurrency", "1", "--disable-hot-restart", "-l", "warning")
						w.listens(pod, outbound)
						w.listens(pod, inbound)
					}
					var first func(c *client)
					if filter == "tcp" {
						first = w.everyHop
					} else {
						first = func(c *client) { w.short(c, false) }
					}
					w.asked("mesh of Envoys, "+filter, version, six, 4, first)
				})
			}
		}
	}
}

// object is a JSON object.
type object map[string]any

const envoyTypes = "type.googleapis.com/envoy.extensions."

// envoyConfig returns the part of what the mesh tells an Envoy that is about where connections go:
// outbound, to wherever the app wanted to go, and inbound, to the app, from 127.0.0.6.
func envoyConfig(http bool) object {
	var listeners, clusters []any
	for _, at := range []struct {
		name, addr, source string
		port               int
	}{
		{"outbound4", "0.0.0.0", "", outbound},
		{"outbound6", "::", "", outbound},
		{"inbound4", "0.0.0.0", "127.0.0.6", inbound},
		{"inbound6", "::", "::6", inbound},
	} {
		listeners = append(listeners, object{
			"name": at.name, "address": socketAddress(at.addr, at.port), "listener_filters": []any{object{
				"name":         "envoy.filters.listener.original_dst",
				"typed_config": object{"@type": envoyTypes + "filters.listener.original_dst.v3.OriginalDst"},
			}},
			"filter_chains": []any{object{"filters": []any{envoyFilter(at.name, http)}}},
		})
		cluster := object{
			"name": at.name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "10s",
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                          envoyTypes + "upstreams.http.v3.HttpProtocolOptions",
				"use_downstream_protocol_config": object{"http_protocol_options": object{}, "http2_protocol_options": object{}},
			}},
		}
		if at.source != "" {
			cluster["upstream_bind_config"] = object{"source_address": object{"address": at.source, "port_value": 0}}
		}
		clusters = append(clusters, cluster)
	}
	return object{"static_resources": object{"listeners": listeners, "clusters": clusters}}
}

func socketAddress(addr string, port int) object {
	return object{"socket_address": object{"address": addr, "port_value": port}}
}

func envoyFilter(cluster string, http bool) object {
	if !http {
		return object{"name": "envoy.filters.network.tcp_proxy", "typed_config": object{
			"@type": envoyTypes + "filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": cluster, "cluster": cluster,
		}}
	}
	return object{"name": "envoy.filters.network.http_connection_manager", "typed_config": object{
		"@type": envoyTypes + "filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": cluster,
		"http_filters": []any{object{"name": "envoy.filters.http.router", "typed_config": object{"@type": envoyTypes + "filters.http.router.v3.Router"}}},
		"route_config": object{"virtual_hosts": []any{object{
			"name": "all", "domains": []string{"*"}, "routes": []any{object{"match": object{"prefix": "/"}, "route": object{"cluster": cluster, "timeout": "0s"}}},
		}}},
	}}
}
