package listwatch

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// query holds the parameters of a request.
type query struct {
	watch     bool
	initial   bool // the stream begins with all objects and marks the end of these
	bookmarks bool
	exact     bool   // exactly as of revision, not later
	revision  uint64 // zero = the current one
	limit     int    // zero = all
	start     int    // the number to continue from
	timeout   time.Duration
	labels    labels.Selector
	onNode    bool   // only pods of the node
	node      int    // number of the node
	name      string // of the only object wanted; empty = all
}

// parseQuery parses a request. Its error is the answer to the client.
func (s *Server) parseQuery(k Kind, values url.Values) (q query, refusal *apierrors.StatusError) {
	fail := func(err error) (query, *apierrors.StatusError) { return query{}, apierrors.NewBadRequest(err.Error()) }
	number := func(key string) (n uint64) {
		if text := values.Get(key); text != "" && refusal == nil {
			var err error
			if n, err = strconv.ParseUint(text, 10, 63); err != nil {
				refusal = apierrors.NewBadRequest(fmt.Sprintf("%s: %v", key, err))
			}
		}
		return n
	}
	q.watch, q.bookmarks = truth(values, "watch"), truth(values, "allowWatchBookmarks")
	q.initial = truth(values, "sendInitialEvents")
	q.exact = values.Get("resourceVersionMatch") == string(metav1.ResourceVersionMatchExact)
	q.revision, q.limit = number("resourceVersion"), int(number("limit"))
	q.timeout = time.Duration(number("timeoutSeconds")) * time.Second
	if refusal != nil {
		return query{}, refusal
	}
	if q.initial && s.cfg.Paged {
		return query{}, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", field.ErrorList{
			field.Forbidden(field.NewPath("sendInitialEvents"), "this server cannot stream lists"),
		})
	}
	if token := values.Get("continue"); token != "" {
		text, err := base64.RawURLEncoding.DecodeString(token)
		if err == nil {
			_, err = fmt.Sscanf(string(text), "%d/%d", &q.revision, &q.start)
		}
		if err != nil || q.start < 0 {
			return fail(fmt.Errorf("continue: %q is not from here", token))
		}
		q.exact = true
	}
	var err error
	if q.labels, err = labels.Parse(values.Get("labelSelector")); err != nil {
		return fail(err)
	}
	if err := s.selectFields(&q, k, values.Get("fieldSelector")); err != nil {
		return fail(err)
	}
	return q, nil
}

func truth(values url.Values, key string) bool {
	yes, err := strconv.ParseBool(values.Get(key))
	return err == nil && yes
}

// selectFields applies the field selectors that agents use.
func (s *Server) selectFields(q *query, k Kind, text string) error {
	selector, err := fields.ParseSelector(text)
	if err != nil {
		return err
	}
	for _, r := range selector.Requirements() {
		switch {
		case r.Field == "spec.nodeName" && k == Pods && r.Operator != "!=":
			q.onNode, q.node = true, s.cfg.Fleet.nodeNumber(r.Value)
		case k == Pods && (r.Field == "spec.hostNetwork" && r.Value == "false" || r.Operator == "!=" && strings.HasPrefix(r.Field, "status.")):
			// All have a network, run, and have an address.
		case r.Field == "metadata.name" && r.Operator != "!=":
			q.name = r.Value
		case r.Field == "spec.clusterIP" && k == Services && r.Operator == "!=" && r.Value == "None": // all have one
		default:
			return fmt.Errorf("field selector %q is not understood here", text)
		}
	}
	return nil
}

// continueToken encodes where the next page begins, and its revision.
func continueToken(revision uint64, start int) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d/%d", revision, start))
}

// selected returns the object if it matches the query.
func (s *Server) selected(k Kind, q *query, number int, at state) object {
	if q.onNode && s.cfg.Fleet.podNode(number) != q.node {
		return nil
	}
	o := k.info().make(s.cfg.Fleet, number, at)
	if q.name != "" && o.GetName() != q.name || !q.labels.Matches(labels.Set(o.GetLabels())) {
		return nil
	}
	return o
}

// expired is the answer to a client that was away for too long.
func expired() *apierrors.StatusError { return apierrors.NewResourceExpired(errExpired.Error()) }

// refuse answers with an error of the API.
func refuse(w http.ResponseWriter, refusal *apierrors.StatusError) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(int(refusal.ErrStatus.Code))
	// If the client is gone, the answer does not matter.
	_ = (&encoder{out: w}).one("v1", "Status", &refusal.ErrStatus)
}
