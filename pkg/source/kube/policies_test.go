package kube

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// measuring records the length of the answers to requests for NetworkPolicies.
type measuring struct {
	next http.RoundTripper

	mu     sync.Mutex
	length int64
}

// RoundTrip sends a request.
func (m *measuring) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := m.next.RoundTrip(request)
	if err == nil && strings.HasSuffix(request.URL.Path, "/networkpolicies") {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.length = response.ContentLength
	}
	return response, err
}

// testPolicies checks that policies are counted with the agent's permissions, and the size of the
// answer does not depend on their number.
func testPolicies(w *apiNamespace) {
	w.asAgent()
	cfg := w.server.Config()
	cfg.Impersonate.UserName = "system:serviceaccount:kube-system:fairlead"
	answers := &measuring{}
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper { answers.next = next; return answers }
	w.replace(cfg, w.Output())
	counted := func() int {
		count, err := w.source.Policies().Count(w.ctx)
		w.must(err)
		return count
	}
	w.await("the permission to count", func() bool { _, err := w.source.Policies().Count(w.ctx); return err == nil })
	if n := counted(); n != 0 {
		w.Errorf("counted %d before any was made", n)
	}
	policies := w.client.NetworkingV1().NetworkPolicies(w.namespace)
	var one int64
	for i := range 5 {
		_, err := policies.Create(w.ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)}}, metav1.CreateOptions{})
		w.must(err)
		if n := counted(); n != i+1 {
			w.Errorf("counted %d after %d were made", n, i+1)
		}
		if i == 0 {
			one = answers.length
		}
	}
	if one <= 0 || answers.length > one+500 { // the answer includes a continue token
		w.Errorf("the answer has %d bytes for one and %d for five", one, answers.length)
	}
	w.must(policies.DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	if n := counted(); n != 0 {
		w.Errorf("counted %d after all were deleted", n)
	}

	cfg = w.server.Config()
	cfg.Impersonate.UserName = "nobody"
	w.replace(cfg, w.Output())
	if _, err := w.source.Policies().Count(w.ctx); !apierrors.IsForbidden(err) {
		w.Errorf("without the permission: %v", err)
	}
}
