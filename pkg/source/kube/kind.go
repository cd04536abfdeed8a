package kube

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"fairlead.io/fairlead/pkg/model"
)

// resource describes one kind of object: how to read it from the API, as A, and the functions that
// take it to the store, as M.
type resource[A runtime.Object, M any] struct {
	name      string // as in the paths of the API, unless path says that
	path      string
	client    rest.Interface
	object    A
	list      func() runtime.Object
	selected  func(*metav1.ListOptions)
	translate func(A) *M // nil for an object to ignore
	// lacking is the pause before the API server is asked again if it does not know the kind; there
	// are no such objects then. It is 0 for kinds that every server knows.
	lacking time.Duration
	// keeps says that objects which were delivered stay when the server no longer knows their kind: an
	// error is no word about objects.
	keeps bool
	// awaited says that the store waits until the server knows the kind: that it does not is no list.
	awaited bool

	set     func(*M)
	drop    func(model.Name)
	replace func([]*M)
}

// kind follows one kind of object. It is the store of a reflector.
type kind[A runtime.Object, M any] struct {
	resource[A, M]
	state
}

func newKind[A runtime.Object, M any](r resource[A, M], log *slog.Logger) *kind[A, M] {
	return &kind[A, M]{resource: r, state: state{kind: r.name, mayLack: r.lacking > 0, log: log}}
}

// newBackoff returns the pauses between attempts. client-go's grow to a minute; serving old
// endpoints for that long after the server is back would be worse than one more request every few
// seconds.
func newBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 8 * time.Second}
}

func (k *kind[A, M]) run(ctx context.Context) {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(detail{k.log.Handler()}))
	ctx = context.WithValue(ctx, asker{}, &k.state)
	listWatch := &cache.ListWatch{ListWithContextFunc: k.listAll, WatchFuncWithContext: k.watch}
	reflector := cache.NewReflectorWithOptions(listWatch, k.object, k, cache.ReflectorOptions{
		Name: k.name, TypeDescription: k.name, Backoff: newBackoff(),
	})
	reflector.RunWithContext(ctx)
}

func (k *kind[A, M]) request(options *metav1.ListOptions) *rest.Request {
	k.selected(options)
	return k.client.Get().Resource(cmp.Or(k.path, k.name)).VersionedParams(options, metav1.ParameterCodec)
}

func (k *kind[A, M]) listAll(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list := k.list()
	err := k.request(&options).Do(ctx).Into(list)
	if err != nil && !k.lacks(ctx, err) {
		k.failed(ctx, err)
	}
	return list, err
}

// lacks reports whether the server does not know the kind, or the agent may not read it, as with the
// permissions of an older chart. If so, it removes the objects of the kind from the store, unless they
// are to be kept or awaited, and returns when it is time to ask again.
func (k *kind[A, M]) lacks(ctx context.Context, err error) bool {
	if k.lacking == 0 || !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return false
	}
	if !k.awaited && (!k.keeps || !k.delivered()) {
		k.replace(nil)
	}
	k.lack(apierrors.IsForbidden(err))
	select {
	case <-ctx.Done():
	case <-time.After(k.lacking/2 + rand.N(k.lacking)): // spreads the nodes
	}
	return true
}

func (k *kind[A, M]) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	w, err := k.request(&options).Watch(ctx)
	// If the server cannot stream a list, the reflector falls back to an ordinary one.
	if err != nil && (options.SendInitialEvents == nil || !apierrors.IsInvalid(err)) && !k.lacks(ctx, err) {
		k.failed(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	return observeWatch(w, &k.state), nil
}

// arrival is a translated object. Its metadata is what a reflector needs to collect a list.
type arrival[M any] struct {
	metav1.ObjectMeta

	value *M // nil for an object to ignore
}

func (a *arrival[M]) model() model.Name { return model.Name{Namespace: a.Namespace, Name: a.Name} }

// Transformer returns the function that a reflector calls for each object of a list before it
// collects it.
func (k *kind[A, M]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return k.arrive(object) }
}

func (k *kind[A, M]) arrive(object any) (*arrival[M], error) {
	if a, ok := object.(*arrival[M]); ok {
		return a, nil
	}
	about, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	a := &arrival[M]{ObjectMeta: metav1.ObjectMeta{
		Namespace: about.GetNamespace(), Name: about.GetName(), ResourceVersion: about.GetResourceVersion(),
	}}
	if typed, ok := object.(A); ok {
		a.value = k.translate(typed)
	}
	return a, nil
}

// Add stores a new object.
func (k *kind[A, M]) Add(object any) error { return k.Update(object) }

// Update stores a changed object, or removes one that is now to be ignored.
func (k *kind[A, M]) Update(object any) error {
	a, err := k.arrive(object)
	if err != nil {
		return err
	}
	if a.value == nil {
		k.drop(a.model())
	} else {
		k.set(a.value)
	}
	k.changed()
	return nil
}

// Delete removes an object that is gone, or that the selector no longer selects.
func (k *kind[A, M]) Delete(object any) error {
	a, err := k.arrive(object)
	if err != nil {
		return err
	}
	k.drop(a.model())
	k.changed()
	return nil
}

// Replace replaces all objects of the kind.
func (k *kind[A, M]) Replace(objects []any, version string) error {
	values := make([]*M, 0, len(objects))
	for _, object := range objects {
		a, err := k.arrive(object)
		if err != nil {
			return err
		}
		if a.value != nil {
			values = append(values, a.value)
		}
	}
	k.replace(values)
	k.listed(len(values), version)
	return nil
}

// Resync does nothing, because the store is level-triggered.
func (k *kind[A, M]) Resync() error { return nil }

// UpdateResourceVersion records how far the watch has come.
func (k *kind[A, M]) UpdateResourceVersion(version string) { k.reached(version) }
