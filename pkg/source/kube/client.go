package kube

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// restConfig returns how to reach the servers.
func restConfig(cfg *Config) (*rest.Config, *servers, error) {
	var base *rest.Config
	var err error
	switch {
	case cfg.REST != nil:
		base = rest.CopyConfig(cfg.REST)
	case cfg.Kubeconfig != "":
		base, err = clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
		if err != nil {
			return nil, nil, fmt.Errorf("read kubeconfig %s: %w", cfg.Kubeconfig, err)
		}
	default:
		base, err = rest.InClusterConfig()
		if err != nil {
			return nil, nil, fmt.Errorf("read service account of the pod (--kubeconfig is not given): %w", err)
		}
	}
	base.UserAgent = "fairlead/" + cfg.Version
	base.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	base.ContentType = runtime.ContentTypeProtobuf
	// The few requests that a reflector makes are spaced by its backoff.
	base.QPS = -1
	base.Timeout = 0 // it would end watches
	host, _, err := rest.DefaultServerUrlFor(base)
	if err != nil {
		return nil, nil, fmt.Errorf("address of the API server: %w", err)
	}
	file := cfg.ServersFile
	if host.Scheme != "https" || base.Insecure {
		file = "" // whoever answers there would be believed
	}
	all := newServers(host.Host, cfg.Servers, file, cfg.Log)
	base.Wrap(func(next http.RoundTripper) http.RoundTripper { return observed{anyServer{next, all}} })
	return base, all, nil
}

// newClient returns a client of one group of the API. It knows our few types only: the usual clients register every
// type that Kubernetes has, which costs megabytes.
func newClient(base *rest.Config, scheme *runtime.Scheme, group schema.GroupVersion) (rest.Interface, error) {
	cfg := rest.CopyConfig(base)
	cfg.GroupVersion = &group
	cfg.APIPath = "/apis"
	if group.Group == "" {
		cfg.APIPath = "/api"
	}
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create client of %s: %w", group, err)
	}
	return client, nil
}
