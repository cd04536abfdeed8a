package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

const (
	eventQueue  = 256              // waiting to be posted
	eventMemory = 4096             // remembered, so that they are not posted again
	eventRepeat = 10 * time.Minute // before the same event is posted again

	// All nodes share the server, so each may post a burst after it starts and few events later.
	eventRate  = 1
	eventBurst = 25

	eventTimeout   = 10 * time.Second
	eventRetry     = 30 * time.Second // the longest pause between attempts
	eventReporter  = "fairlead"
	maxEventText   = 1024 // the API's limit
	maxEventReason = 128
)

// Events posts problems of objects where their authors look for them. It drops what it cannot post
// in time: events are a courtesy, and the log and the agent's status say the same.
type Events struct {
	client rest.Interface
	node   string
	log    *slog.Logger
	queue  chan *corev1.Event
	now    func() time.Time

	mu      sync.Mutex
	posted  map[string]time.Time // by the event's name: when it may be posted again
	dropped uint64
}

func newEvents(base *rest.Config, scheme *runtime.Scheme, node string, log *slog.Logger) (*Events, error) {
	limited := rest.CopyConfig(base)
	limited.QPS, limited.Burst = eventRate, eventBurst
	client, err := newClient(limited, scheme, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Events{
		client: client, node: node, log: log,
		queue:  make(chan *corev1.Event, eventQueue),
		now:    time.Now,
		posted: map[string]time.Time{},
	}, nil
}

// Warn posts a warning about an object of any kind that a Key names, unless it posted the same in the
// last ten minutes. It never blocks.
func (e *Events) Warn(key model.Key, uid string, reason, message string) {
	event := e.event(key, uid, reason, message)
	e.enqueue(event, event.Name)
}

// Notice is Warn for what is only worth knowing.
func (e *Events) Notice(key model.Key, uid string, reason, message string) {
	event := e.event(key, uid, reason, message)
	event.Type = corev1.EventTypeNormal
	e.enqueue(event, event.Name)
}

// Node posts an event about this node, unless it posted one with the same reason in the last ten
// minutes, and reports whether the event will be posted. It never blocks.
func (e *Events) Node(uid string, warning bool, reason, message string) bool {
	return e.enqueue(e.nodeEvent(uid, warning, reason, message), reason)
}

// Standing posts an event about a lasting state of this node. The event has the same name whichever
// agent finds the state and however often, so the server has it only once until it expires. Its
// result is like Node's.
func (e *Events) Standing(uid, reason, message string) bool {
	event := e.nodeEvent(uid, true, reason, message)
	event.Name = eventName(model.Key{Name: model.Name{Namespace: event.Namespace, Name: e.node}}, cmp.Or(uid, e.node), reason, "")
	return e.enqueue(event, reason)
}

// enqueue queues an event and reports whether it did. It drops one that counts as the same as an
// event posted in the last ten minutes.
func (e *Events) enqueue(event *corev1.Event, same string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	if now.Before(e.posted[same]) {
		return false
	}
	if len(e.posted) >= eventMemory {
		for old, until := range e.posted {
			if !now.Before(until) {
				delete(e.posted, old)
			}
		}
	}
	if len(e.posted) >= eventMemory {
		e.dropped++
		return false
	}
	select {
	case e.queue <- event:
		e.posted[same] = now.Add(eventRepeat)
		return true
	default:
		e.dropped++
		return false
	}
}

// Dropped returns how many events could not be queued.
func (e *Events) Dropped() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dropped
}

func (e *Events) event(key model.Key, uid, reason, message string) *corev1.Event {
	group, kind := corev1.SchemeGroupVersion, "Service"
	switch key.Kind {
	case model.KindPod:
		kind = "Pod"
	case model.KindAcceleration:
		group, kind = source.AccelerationGroup(), "SocketAcceleration"
	case model.KindServiceCIDR:
		group, kind = networkingv1.SchemeGroupVersion, "ServiceCIDR"
	case model.KindNetworkPolicy:
		group, kind = networkingv1.SchemeGroupVersion, "NetworkPolicy"
	case model.KindClusterNetworkPolicy:
		group, kind = source.ClusterPolicyGroup(), "ClusterNetworkPolicy"
	}
	now := metav1.NewTime(e.now())
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(key.Namespace, metav1.NamespaceDefault), Name: eventName(key, uid, reason, message)},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: group.String(), Kind: kind, Namespace: key.Namespace, Name: key.Name.Name, UID: types.UID(uid),
		},
		Type:                corev1.EventTypeWarning,
		Reason:              clip(reason, maxEventReason),
		Message:             clip(message, maxEventText),
		Count:               1,
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Source:              corev1.EventSource{Component: eventReporter, Host: e.node},
		ReportingController: eventReporter,
		ReportingInstance:   e.node,
	}
}

// nodeEvent returns an event about the node itself. Events about an object without a namespace are
// in the default namespace, and kubectl finds those of a node by its name in place of a UID too.
func (e *Events) nodeEvent(uid string, warning bool, reason, message string) *corev1.Event {
	key := model.Key{Name: model.Name{Namespace: metav1.NamespaceDefault, Name: e.node}}
	event := e.event(key, cmp.Or(uid, e.node), reason, message)
	// The node may get the same event more than once, and each needs a name of its own.
	event.Name = eventName(key, event.FirstTimestamp.Format(time.RFC3339Nano), reason, message)
	event.InvolvedObject.Kind, event.InvolvedObject.Namespace = "Node", ""
	if !warning {
		event.Type = corev1.EventTypeNormal
	}
	return event
}

// eventName is the same on every node, because all of them see the same problem and its author
// wants to read it once.
func eventName(key model.Key, uid, reason, message string) string {
	const maxName, suffix = 253, 16
	hash := sha256.Sum256([]byte(strings.Join([]string{key.String(), uid, reason, message}, "\x00")))
	object := key.Name.Name
	if most := maxName - 1 - suffix; len(object) > most {
		object = strings.TrimRight(object[:most], ".-")
	}
	return object + "." + hex.EncodeToString(hash[:suffix/2])
}

// clip returns valid UTF-8 of at most most bytes.
func clip(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	cut := most - len("...")
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "..."
}

// run posts events until the context ends.
func (e *Events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			if err := e.post(ctx, event); err != nil && ctx.Err() == nil {
				e.log.Warn("cannot post event", "namespace", event.Namespace, "object", event.InvolvedObject.Name,
					"reason", event.Reason, "error", err)
			}
		}
	}
}

// post posts one event. If the server does not answer, post tries again until it does; a rejection
// is final. An event that exists already counts as posted.
func (e *Events) post(ctx context.Context, event *corev1.Event) error {
	for pause := time.Second; ; pause = min(2*pause, eventRetry) {
		err := e.create(ctx, event)
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if refused(err) || ctx.Err() != nil {
			return err
		}
		e.log.Debug("retrying to post an event", "error", err, "in", pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (e *Events) create(ctx context.Context, event *corev1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	return e.client.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
}

// refused reports whether the server rejected the request, as opposed to being unable to answer
// now.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}
