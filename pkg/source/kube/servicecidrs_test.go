package kube

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.io/fairlead/pkg/model"
)

// older answers as a server does that has no ServiceCIDRs yet, or that has the permissions of an older
// chart, which did not know them.
type older struct {
	next http.RoundTripper
	ends *atomic.Bool
	code int
	why  metav1.StatusReason
}

// RoundTrip sends a request.
func (o older) RoundTrip(request *http.Request) (*http.Response, error) {
	if strings.HasSuffix(request.URL.Path, "/servicecidrs") && !o.ends.Load() {
		return o.refuse(request), nil
	}
	return o.next.RoundTrip(request)
}

func (o older) refuse(request *http.Request) *http.Response {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":%q,"code":%d}`, o.why, o.code)
	return &http.Response{
		StatusCode: o.code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: request,
	}
}

// testServiceCIDRs follows ServiceCIDRs with only the permissions of the manifest, from before the
// cluster is upgraded to a version that has the kind. One that is being deleted no longer counts,
// though Services keep it there.
func testServiceCIDRs(w *apiNamespace) {
	w.followServiceCIDRs(older{code: http.StatusNotFound, why: metav1.StatusReasonNotFound})
}

// testForbiddenServiceCIDRs is the same where the agent may not read them until the chart is upgraded.
// The log says so once, with the cure.
func testForbiddenServiceCIDRs(w *apiNamespace) {
	log := w.followServiceCIDRs(older{code: http.StatusForbidden, why: metav1.StatusReasonForbidden})
	if log.lines("may not read this kind of object") != 1 || log.lines("level=ERROR") != 0 {
		w.Errorf("the log says it not just once:\n%s", log.text.String())
	}
}

func (w *apiNamespace) followServiceCIDRs(before older) *logBuffer {
	w.Helper()
	w.asAgent()
	log, upgraded := &logBuffer{}, &atomic.Bool{}
	cfg := w.server.Config()
	cfg.Impersonate.UserName = "system:serviceaccount:kube-system:fairlead"
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		before.next, before.ends = next, upgraded
		return before
	})
	var err error
	w.source, err = New(Config{REST: cfg, NodeName: node, ServiceCIDRs: true, Store: w.store, Log: slog.New(slog.NewTextHandler(log, nil))})
	w.must(err)
	for _, k := range w.source.kinds {
		if followed, ok := k.(*kind[*networkingv1.ServiceCIDR, model.ServiceCIDR]); ok {
			followed.lacking = 50 * time.Millisecond
		}
	}
	w.follow()
	w.await("the kind to be missed", func() bool { return w.kind("servicecidrs").Lacking })
	if k := w.kind("servicecidrs"); !k.Synced || k.Error != "" || log.lines("level=ERROR") != 0 {
		w.Errorf("without the kind: %+v, log:\n%s", k, log.text.String())
	}
	ranges := func() (list []string) {
		objects, _ := w.store.ServiceCIDRs()
		for _, object := range objects {
			for _, cidr := range object.CIDRs {
				list = append(list, object.Name+" "+cidr.String())
			}
		}
		return list
	}
	if list := ranges(); list != nil {
		w.Errorf("without the kind: %q", list)
	}
	upgraded.Store(true)
	w.await("the cluster's own range", func() bool {
		return slices.ContainsFunc(ranges(), func(text string) bool { return strings.HasPrefix(text, "kubernetes ") })
	})
	cidrs := w.client.NetworkingV1().ServiceCIDRs()
	made, err := cidrs.Create(w.ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.222.0.0/24"}},
	}, metav1.CreateOptions{})
	w.must(err)
	has := func() bool { return slices.Contains(ranges(), "more 10.222.0.0/24") }
	w.await("another range", has)
	made.Finalizers = append(made.Finalizers, "fairlead.io/test")
	_, err = cidrs.Update(w.ctx, made, metav1.UpdateOptions{})
	w.must(err)
	w.must(cidrs.Delete(w.ctx, "more", metav1.DeleteOptions{}))
	w.await("a range that is being deleted not to count", func() bool { return !has() })
	kept, err := cidrs.Get(w.ctx, "more", metav1.GetOptions{})
	w.must(err)
	if kept.DeletionTimestamp == nil {
		w.Error("the range is not being deleted")
	}
	kept.Finalizers = nil
	_, err = cidrs.Update(w.ctx, kept, metav1.UpdateOptions{})
	w.must(err)

	events := w.source.Events()
	key := model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: "more"}}
	events.Warn(key, string(made.UID), "ServiceCIDRIgnored", "it has addresses of a node")
	w.await("its event", func() bool {
		list, err := w.client.CoreV1().Events(metav1.NamespaceDefault).List(w.ctx, metav1.ListOptions{})
		w.must(err)
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == "ServiceCIDR" && e.InvolvedObject.Name == "more" && e.Reason == "ServiceCIDRIgnored"
		})
	})
	return log
}
