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

// restConfig returns the configuration of clients, and the API servers they can use.
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
			return nil, nil, fmt.Errorf("read the pod's service account (--kubeconfig is not set): %w",
				err)
		}
	}
	base.UserAgent = "fairlead/" + cfg.Version
	base.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	base.ContentType = runtime.ContentTypeProtobuf
	// A reflector makes few requests, and its backoff spaces them.
	base.QPS = -1
	base.Timeout = 0 // a timeout would end watches
	host, _, err := rest.DefaultServerUrlFor(base)
	if err != nil {
		return nil, nil, fmt.Errorf("address of the API server: %w", err)
	}
	file := cfg.ServersFile
	if host.Scheme != "https" || base.Insecure {
		// Without certificates, the agent would trust whoever answers at a remembered address.
		file = ""
	}
	all := newServers(host.Host, cfg.Servers, file, cfg.Log)
	base.Wrap(func(next http.RoundTripper) http.RoundTripper { return observed{anyServer{next, all}} })
	return base, all, nil
}

// newClient returns a client for one group of the API. It knows only the few types that the agent
// uses; client-go's clientset would register every type of Kubernetes, which costs megabytes.
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
