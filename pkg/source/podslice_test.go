package source

import (
	"encoding/json"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// sliceOf returns the text of a PodSlice with this name and spec.
func sliceOf(name, spec string) []byte {
	return []byte(`{"metadata":{"name":"` + name + `"},"spec":` + spec + `}`)
}

// TestCheckedPodSlice checks what agents read of a slice, and that they take nothing of one that is wrong anywhere.
func TestCheckedPodSlice(t *testing.T) {
	const good = `{"name":"a","created":7,"ips":["10.1.0.1","fd00::1"]}`
	read := &CheckedPodSlice{}
	if err := json.Unmarshal(sliceOf("shop.0", `{"namespace":"shop","shapes":[{"labels":{"app":"web"},"ports":[{"name":"http","protocol":"TCP","port":80}],"pods":[`+good+`]}]}`), read); err != nil {
		t.Fatal(err)
	}
	pods := PodSlicePods(read)
	if pods.Complete || len(pods.Pods) != 1 {
		t.Fatalf("it holds %+v", pods)
	}
	pod := pods.Pods[0]
	if pod.Name != (model.Name{Namespace: "shop", Name: "a"}) || pod.Created != 7 || pod.Labels["app"] != "web" || len(pod.Addrs) != 2 || len(pod.Ports) != 1 || pod.Ports[0].Port != 80 {
		t.Errorf("its pod is %+v", pod.PolicyPod)
	}
	complete := &CheckedPodSlice{}
	if err := json.Unmarshal(sliceOf(PodSlicesComplete, `{}`), complete); err != nil || !PodSlicePods(complete).Complete {
		t.Errorf("the slice that says that all are there: %v, %+v", err, complete)
	}

	// A watch says now and then how far it is, by an object that has only a version.
	bookmark := &CheckedPodSlice{}
	err := json.Unmarshal([]byte(`{"kind":"PodSlice","apiVersion":"fairlead.io/v1alpha1","metadata":{"resourceVersion":"7","creationTimestamp":null},"spec":{}}`), bookmark)
	if pods := PodSlicePods(bookmark); err != nil || pods.Complete || len(pods.Pods) > 0 {
		t.Errorf("a bookmark: %v, %+v", err, pods)
	}

	shape := func(pods string) string {
		return `{"namespace":"shop","shapes":[{"pods":[` + good + `,` + pods + `]}]}`
	}
	for name, test := range map[string]struct{ name, spec, says string }{
		"of another namespace":  {"bank.0", shape(`{"name":"b","ips":["10.1.0.2"]}`), "its name does not say that"},
		"a name without number": {"shop", shape(`{"name":"b","ips":["10.1.0.2"]}`), "its name does not say that"},
		"no namespace":          {".0", `{"shapes":[]}`, "its name does not say that"},
		"pods without a name":   {"", shape(`{"name":"b","ips":["10.1.0.2"]}`), "its name does not say that"},
		"pods where none are":   {PodSlicesComplete, shape(`{"name":"b","ips":["10.1.0.2"]}`), "which none of this name does"},
		"no name":               {"shop.0", shape(`{"ips":["10.1.0.2"]}`), "or it has none"},
		"a name twice":          {"shop.0", shape(`{"name":"a","ips":["10.1.0.2"]}`), "another one of that name"},
		"no address":            {"shop.0", shape(`{"name":"b","ips":[]}`), "0 addresses"},
		"two of a family":       {"shop.0", shape(`{"name":"b","ips":["10.1.0.2","10.1.0.3"]}`), "2 addresses"},
		"three addresses":       {"shop.0", shape(`{"name":"b","ips":["10.1.0.2","fd00::2","fd00::3"]}`), "3 addresses"},
		"no number":             {"shop.0", shape(`{"name":"b","ips":["10.1.0.300"]}`), "no address of a pod"},
		"a zone":                {"shop.0", shape(`{"name":"b","ips":["fe80::1%eth0"]}`), "no address of a pod"},
		"IPv4 in IPv6":          {"shop.0", shape(`{"name":"b","ips":["::ffff:10.1.0.2"]}`), "no address of a pod"},
		"every address":         {"shop.0", shape(`{"name":"b","ips":["0.0.0.0"]}`), "no address of a pod"},
		"a group":               {"shop.0", shape(`{"name":"b","ips":["ff02::1"]}`), "no address of a pod"},
		"port 0":                {"shop.0", `{"namespace":"shop","shapes":[{"ports":[{"name":"x","protocol":"TCP","port":0}],"pods":[` + good + `]}]}`, "is none"},
		"port 65536":            {"shop.0", `{"namespace":"shop","shapes":[{"ports":[{"name":"x","protocol":"TCP","port":65536}],"pods":[` + good + `]}]}`, "is none"},
		"another protocol":      {"shop.0", `{"namespace":"shop","shapes":[{"ports":[{"name":"x","protocol":"ICMP","port":1}],"pods":[` + good + `]}]}`, "is none"},
		"a port without a name": {"shop.0", `{"namespace":"shop","shapes":[{"ports":[{"protocol":"TCP","port":1}],"pods":[` + good + `]}]}`, "is none"},
		"labels of a later API": {"shop.0", `{"namespace":"shop","shapes":[{"labels":["app"],"pods":[` + good + `]}]}`, "cannot unmarshal"},
	} {
		text, out := sliceOf(test.name, test.spec), &CheckedPodSlice{}
		if err := json.Unmarshal(text, out); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, test.says)
		}
		if len(PodSlicePods(out).Pods) > 0 {
			t.Errorf("%s: pods are taken: %+v", name, PodSlicePods(out))
		}
		// Whoever writes slices has to read it, to replace it.
		if err := json.Unmarshal(text, &PodSlice{}); err != nil {
			t.Errorf("%s: its writer cannot read it: %v", name, err)
		}
	}
}

// TestSums checks that the sum of a pod changes with whatever policies see of it, and with nothing else.
func TestSums(t *testing.T) {
	sum := func(shape, pod string) uint64 {
		t.Helper()
		slice := &CheckedPodSlice{}
		if err := json.Unmarshal(sliceOf("shop.0", `{"namespace":"shop","shapes":[{`+shape+`"pods":[`+pod+`]}]}`), slice); err != nil {
			t.Fatal(err)
		}
		return PodSlicePods(slice).Pods[0].Sum
	}
	const shape, pod = `"labels":{"a":"1","b":"2"},"ports":[{"name":"x","protocol":"TCP","port":1}],`, `{"name":"a","created":7,"ips":["10.1.0.1"]}`
	first := sum(shape, pod)
	if first != sum(`"ports":[{"name":"x","protocol":"TCP","port":1}],"labels":{"b":"2","a":"1"},`, pod) {
		t.Error("labels in another order make another pod")
	}
	for name, other := range map[string]uint64{
		"a label":    sum(`"labels":{"a":"1","b":"3"},"ports":[{"name":"x","protocol":"TCP","port":1}],`, pod),
		"no label":   sum(`"ports":[{"name":"x","protocol":"TCP","port":1}],`, pod),
		"a port":     sum(`"labels":{"a":"1","b":"2"},"ports":[{"name":"x","protocol":"TCP","port":2}],`, pod),
		"an address": sum(shape, `{"name":"a","created":7,"ips":["10.1.0.2"]}`),
		"a family":   sum(shape, `{"name":"a","created":7,"ips":["10.1.0.1","fd00::1"]}`),
		"its birth":  sum(shape, `{"name":"a","created":8,"ips":["10.1.0.1"]}`),
	} {
		if other == first {
			t.Errorf("%s does not count", name)
		}
	}
}

// Whatever a slice says, an agent takes only pods that are one, each once, and whoever writes slices can read it.
func FuzzPodSlice(f *testing.F) {
	for _, seed := range []string{
		`{"namespace":"shop","shapes":[{"labels":{"app":"web"},"ports":[{"name":"http","protocol":"TCP","port":80}],"pods":[{"name":"a","created":7,"ips":["10.1.0.1","fd00::1"]},{"name":"b","ips":["10.1.0.2"]}]}]}`,
		`{"namespace":"shop","shapes":[{"pods":[{"name":"a","ips":["::ffff:1.2.3.4"]}]}]}`,
		`{"namespace":"shop","shapes":[{"labels":7}]}`,
	} {
		f.Add("shop.0", seed)
	}
	f.Add(PodSlicesComplete, `{}`)
	f.Fuzz(func(t *testing.T, name, spec string) {
		quoted, err := json.Marshal(name)
		if err != nil || !json.Valid([]byte(spec)) {
			return
		}
		text := []byte(`{"metadata":{"name":` + string(quoted) + `},"spec":` + spec + `}`)
		if err := json.Unmarshal(text, &PodSlice{}); err != nil {
			t.Errorf("its writer cannot read it: %v", err)
		}
		slice := &CheckedPodSlice{}
		if json.Unmarshal(text, slice) != nil {
			return
		}
		pods := PodSlicePods(slice)
		if pods.Complete && len(pods.Pods) > 0 {
			t.Errorf("%d pods are in the slice that has none", len(pods.Pods))
		}
		names := map[model.Name]bool{}
		for _, pod := range pods.Pods {
			if names[pod.Name] || pod.Name.Name == "" || !strings.HasPrefix(name, pod.Name.Namespace+".") {
				t.Errorf("slice %q has pod %v", name, pod.Name)
			}
			names[pod.Name] = true
			if n := len(pod.Addrs); n < 1 || n > 2 || n == 2 && pod.Addrs[0].Is4() == pod.Addrs[1].Is4() {
				t.Errorf("a pod has addresses %v", pod.Addrs)
			}
			for _, addr := range pod.Addrs {
				if !addr.IsValid() || addr.Is4In6() || addr.Zone() != "" || addr.IsMulticast() || addr.IsUnspecified() {
					t.Errorf("a pod has address %v", addr)
				}
			}
			for _, port := range pod.Ports {
				if port.Port == 0 || port.Name == "" {
					t.Errorf("a pod has port %+v", port)
				}
			}
		}
	})
}
