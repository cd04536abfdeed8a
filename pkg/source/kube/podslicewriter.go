package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
	"fairlead.io/fairlead/pkg/source/podslices"
)

const (
	// sliceBatch is how long changes of pods are collected. A slice is written once for all of them.
	sliceBatch = 200 * time.Millisecond
	// However pods change, the server gets so many writes a second. It is more than the changes of a large
	// cluster: a writer that could not follow would leave nodes with what pods were.
	sliceRate, sliceBurst = 200, 200
	sliceWriters          = 8 // requests under way
	sliceTimeout          = 10 * time.Second

	// sliceRenewal is how often the writer says that it is there.
	sliceRenewal = time.Minute

	sliceMinRetry, sliceMaxRetry = 250 * time.Millisecond, 30 * time.Second
)

// PodSlices keeps PodSlices that hold the pods of all nodes, as policies see them. It starts from those that are
// there, and writes only what differs from them.
type PodSlices struct {
	core, reader, writer rest.Interface
	log                  *slog.Logger

	mu     sync.Mutex
	packer *podslices.Packer
	have   map[string]*heldSlice
	// overtaken says of slices that are being written whether an event of them has come meanwhile. It may be
	// about this write or a later one, so the answer says nothing new.
	overtaken map[string]bool
	due       map[string]struct{} // slices to compare again, besides those that the packer knows of
	filled    bool                // all pods are packed
	renewed   int64               // when this process last said that it is there, in seconds since 1970
	since     time.Time           // when the oldest change came that is not written; zero if all are
	changed   chan struct{}
	writes    int
}

// heldSlice is a slice as the server has it.
type heldSlice struct {
	name, version string
	sum           [sha256.Size]byte // of its spec
	spec          *source.PodSliceSpec
	// coming is the version that a write of this process led to, until its event has come. Older events are
	// about what is known to be past.
	coming string
}

// NewPodSlices returns PodSlices that write nothing before Run. Of the configuration it uses what leads to the server.
func NewPodSlices(cfg Config) (*PodSlices, error) {
	base, _, err := restConfig(&cfg)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, source.AddPodSlices} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register types: %w", err)
		}
	}
	p := &PodSlices{log: cfg.Log, changed: make(chan struct{}, 1)}
	if p.core, err = newClient(base, scheme, corev1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if p.reader, err = newClient(base, scheme, source.AccelerationGroup()); err != nil {
		return nil, err
	}
	base.QPS, base.Burst = sliceRate, sliceBurst
	if p.writer, err = newClient(base, scheme, source.AccelerationGroup()); err != nil {
		return nil, err
	}
	return p, nil
}

// Run follows pods and slices and writes until the context ends. It may be called again after it has returned.
func (p *PodSlices) Run(ctx context.Context) {
	p.mu.Lock()
	p.packer, p.have, p.due, p.filled, p.since = podslices.New(), nil, map[string]struct{}{}, false, time.Time{}
	p.overtaken = map[string]bool{}
	p.mu.Unlock()
	p.renew()
	held := newKind(resource[*source.PodSlice, heldSlice]{
		name: "podslices", client: p.reader,
		object: &source.PodSlice{}, list: func() runtime.Object { return &source.PodSliceList{} },
		selected: func(*metav1.ListOptions) {}, translate: holdSlice, lacking: conditionsLacking, awaited: true,
		set: p.setSlice, drop: p.dropSlice, replace: p.replaceSlices,
	}, p.log)
	pods := newKind(allPods(p.core, p.setPod, p.dropPod, p.replacePods), p.log)
	var running sync.WaitGroup
	running.Go(func() { held.run(ctx) })
	running.Go(func() { p.keepRenewing(ctx) })
	pause, failing := time.Duration(0), false
	for following := false; p.await(ctx, pause); {
		if !following && p.adopted() { // so that pods go where they were
			running.Go(func() { pods.run(ctx) })
			following = true
		}
		err := p.flush(ctx)
		switch {
		case err == nil:
			pause, failing = 0, false
		case ctx.Err() == nil:
			pause = min(max(2*pause, sliceMinRetry), sliceMaxRetry)
			if !failing && !outdated(err) { // once, however long it lasts
				failing = true
				p.log.Warn("cannot write the slices of pods, trying again: nodes do not learn of changes of pods", "error", err)
			}
		}
	}
	running.Wait()
}

func (p *PodSlices) keepRenewing(ctx context.Context) {
	tick := time.NewTicker(sliceRenewal)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.renew()
		}
	}
}

// renew has the next flush say that this process is there.
func (p *PodSlices) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.renewed = time.Now().Unix()
	p.touch()
}

// adopted reports whether the slices that were there are known.
func (p *PodSlices) adopted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have != nil
}

// outdated reports whether an error says no more than that a slice has changed, which is about to be delivered.
func outdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// await returns when there is something to write and more was waited for, or false if the context has ended.
func (p *PodSlices) await(ctx context.Context, pause time.Duration) bool {
	if pause > 0 { // a failure is tried again, whether something changes or not
		p.wake()
	}
	select {
	case <-ctx.Done():
		return false
	case <-p.changed:
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(max(pause, sliceBatch)):
		return ctx.Err() == nil
	}
}

func (p *PodSlices) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// touch notes that something may have to be written.
func (p *PodSlices) touch() {
	if p.since.IsZero() {
		p.since = time.Now()
	}
	p.wake()
}

// flush writes what has changed. What cannot be written is due again.
func (p *PodSlices) flush(ctx context.Context) error {
	p.mu.Lock()
	if !p.filled {
		p.mu.Unlock()
		return nil
	}
	first, rest := p.packer.Changed()
	for name := range p.due {
		if !slices.Contains(first, name) {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	rest = slices.Compact(rest)
	clear(p.due)
	since, writes := p.since, p.writes
	p.since = time.Time{}
	p.mu.Unlock()

	err := p.writeAll(ctx, first)
	if err == nil {
		err = p.writeAll(ctx, rest)
	} else {
		p.failed(rest)
	}
	if err == nil {
		err = p.write(ctx, source.PodSlicesComplete)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.since = cmp.Or(since, p.since)
		return err
	}
	p.log.Debug("wrote the slices of pods", "writes", p.writes-writes, "slices", p.packer.Slices(), "after", time.Since(since).Round(time.Millisecond))
	return nil
}

// failed makes slices due again.
func (p *PodSlices) failed(names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		p.due[name] = struct{}{}
	}
}

// writeAll writes slices, several at a time.
func (p *PodSlices) writeAll(ctx context.Context, names []string) error {
	errs := make([]error, len(names))
	places := make(chan struct{}, sliceWriters)
	var running sync.WaitGroup
	for i, name := range names {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			if errs[i] = p.write(ctx, name); errs[i] != nil {
				p.failed([]string{name})
			}
		})
	}
	running.Wait()
	at := slices.IndexFunc(errs, func(err error) bool { return err != nil && !outdated(err) })
	if at < 0 {
		at = slices.IndexFunc(errs, func(err error) bool { return err != nil })
	}
	if at < 0 {
		return nil
	}
	return errs[at]
}

// write makes a slice what it should be, if it is not.
func (p *PodSlices) write(ctx context.Context, name string) error {
	p.mu.Lock()
	want, have := p.packer.Spec(name), p.have[name]
	if name == source.PodSlicesComplete {
		want = &source.PodSliceSpec{Renewed: p.renewed}
	}
	p.overtaken[name] = false
	p.mu.Unlock()
	defer p.written(name)
	if want == nil && have == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sliceTimeout)
	defer cancel()
	if want == nil {
		return p.remove(ctx, have)
	}
	sum := sumOfSpec(want)
	if have != nil && have.sum == sum {
		return nil
	}
	about := map[string]any{"name": name}
	request := p.writer.Post()
	if have != nil {
		// The version makes the server refuse what was computed from another state, also by a process that does
		// not know yet that it has lost the election.
		about["resourceVersion"] = have.version
		request = p.writer.Put().Name(name)
	}
	body, err := json.Marshal(map[string]any{"apiVersion": source.AccelerationGroup().String(), "kind": "PodSlice", "metadata": about, "spec": want})
	if err != nil {
		return err
	}
	made := &source.PodSlice{}
	if err := request.Resource("podslices").SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Into(made); err != nil {
		return fmt.Errorf("write PodSlice %s: %w", name, err)
	}
	next := holdSlice(made)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	if p.overtaken[name] {
		return nil
	}
	if have == nil || next.version != have.version {
		next.coming = next.version
	}
	next.spec, p.have[name] = nil, next
	return nil
}

// written says that a slice is no longer being written.
func (p *PodSlices) written(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.overtaken, name)
}

// overtake notes that an event of a slice has come.
func (p *PodSlices) overtake(name string) {
	if _, writing := p.overtaken[name]; writing {
		p.overtaken[name] = true
	}
}

// remove deletes a slice that is to hold nothing any longer.
func (p *PodSlices) remove(ctx context.Context, have *heldSlice) error {
	err := p.writer.Delete().Resource("podslices").Name(have.name).SetHeader("Content-Type", runtime.ContentTypeJSON).
		Body(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":%q}}`, have.version)).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete PodSlice %s: %w", have.name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writes++; !p.overtaken[have.name] {
		delete(p.have, have.name)
	}
	return nil
}

func holdSlice(in *source.PodSlice) *heldSlice {
	return &heldSlice{name: in.Name, version: in.ResourceVersion, sum: sumOfSpec(&in.Spec), spec: &in.Spec}
}

func sumOfSpec(spec *source.PodSliceSpec) [sha256.Size]byte {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // it consists of texts and numbers
	}
	return sha256.Sum256(text)
}

func (p *PodSlices) setSlice(in *heldSlice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in.spec = nil
	if was := p.have[in.name]; was != nil && was.coming != "" {
		if was.coming == in.version {
			was.coming = ""
		}
		return
	}
	p.overtake(in.name)
	p.have[in.name] = in
	p.due[in.name] = struct{}{}
	p.touch()
}

func (p *PodSlices) dropSlice(name model.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.have[name.Name]; was == nil || was.coming == "" {
		p.overtake(name.Name)
		delete(p.have, name.Name)
		p.due[name.Name] = struct{}{}
		p.touch()
	}
}

func (p *PodSlices) replaceSlices(list []*heldSlice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.have {
		p.due[name] = struct{}{}
	}
	for name := range p.overtaken {
		p.overtaken[name] = true
	}
	first := p.have == nil
	p.have = make(map[string]*heldSlice, len(list))
	for _, in := range list {
		if first && in.name != source.PodSlicesComplete {
			p.packer.Adopt(in.name, in.spec)
		}
		in.spec, p.have[in.name] = nil, in
		p.due[in.name] = struct{}{}
	}
	p.touch()
}

func (p *PodSlices) setPod(pod *model.PolicyPod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.packer.Set(pod)
	p.touch()
}

func (p *PodSlices) dropPod(name model.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.packer.Delete(name)
	p.touch()
}

func (p *PodSlices) replacePods(list []*model.PolicyPod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.packer.Replace(list)
	p.filled = true
	p.touch()
}
