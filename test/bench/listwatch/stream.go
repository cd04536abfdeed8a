package listwatch

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// batch is the number of events read at once, and of a list's objects between checks of the client.
const batch = 256

// serveList answers with all objects or a page of them.
func (s *Server) serveList(w http.ResponseWriter, k Kind, q *query) {
	at := uint64(0)
	if q.exact {
		at = q.revision
	}
	view, revision, err := s.state.snapshot(k, at)
	if err != nil || q.revision > revision {
		refuse(w, expired())
		return
	}
	about := metav1.ListMeta{ResourceVersion: strconv.FormatUint(revision, 10)}
	end := view.count
	if q.limit > 0 {
		if end = s.pageEnd(k, q, view); end < view.count {
			about.Continue = continueToken(revision, end)
		}
	}
	w.Header().Set("Content-Type", contentType)
	out := bufio.NewWriterSize(w, 1<<16)
	info := k.info()
	err = (&encoder{out: out}).list(info.version, info.kind, about, func(take func(marshaler) error) error {
		for number := q.start; number < end; number++ {
			if now := view.at(number); !now.gone {
				if o := s.selected(k, q, number, now); o != nil {
					if err := take(o); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		// No length was announced, so only a broken connection tells the client that the list is
		// incomplete.
		panic(http.ErrAbortHandler)
	}
}

// pageEnd returns the number after the last object of a page.
func (s *Server) pageEnd(k Kind, q *query, view table) int {
	number := q.start
	for left := q.limit; number < view.count && left > 0; number++ {
		if now := view.at(number); !now.gone && s.selected(k, q, number, now) != nil {
			left--
		}
	}
	return number
}

// watcher is one watch.
type watcher struct {
	*Server
	kind    Kind
	query   *query
	encoder encoder
	out     *bufio.Writer
	flush   func() error
}

// serveWatch streams events until the client closes the watch.
func (s *Server) serveWatch(w http.ResponseWriter, r *http.Request, k Kind, q *query) {
	ctx := r.Context()
	if q.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.timeout)
		defer cancel()
	}
	w.Header().Set("Content-Type", contentType+";stream=watch")
	out := bufio.NewWriterSize(w, 1<<16)
	watch := &watcher{
		Server: s, kind: k, query: q, out: out, encoder: encoder{out: out},
		flush: func() error { return errors.Join(out.Flush(), http.NewResponseController(w).Flush()) },
	}
	from := q.revision
	var err error
	if q.initial || from == 0 {
		from, err = watch.everything(ctx)
	}
	if err == nil {
		err = watch.follow(ctx, from)
	}
	if errors.Is(err, errExpired) {
		// The watch has begun already, so an event must carry the error.
		status := expired().ErrStatus
		err = errors.Join(watch.encoder.event("ERROR", "v1", "Status", &status), watch.flush())
	}
	if err != nil && ctx.Err() == nil {
		panic(http.ErrAbortHandler)
	}
}

// everything sends all objects, followed by a bookmark that marks their end if requested. It
// returns their revision.
func (w *watcher) everything(ctx context.Context) (uint64, error) {
	view, revision, err := w.state.snapshot(w.kind, 0)
	if err != nil || w.query.revision > revision {
		return 0, errExpired
	}
	info := w.kind.info()
	for number := range view.count {
		if number%batch == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		now := view.at(number)
		if now.gone {
			continue
		}
		if o := w.selected(w.kind, w.query, number, now); o != nil {
			if err := w.encoder.event("ADDED", info.version, info.kind, o); err != nil {
				return 0, err
			}
		}
	}
	if w.query.initial {
		return revision, w.bookmark(revision, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return revision, nil
}

func (w *watcher) bookmark(revision uint64, annotations map[string]string) error {
	info := w.kind.info()
	return w.encoder.event("BOOKMARK", info.version, info.kind, info.empty(metav1.ObjectMeta{
		ResourceVersion: strconv.FormatUint(revision, 10), Annotations: annotations,
	}))
}

// follow sends the changes after a revision. It flushes only when it has nothing more to send.
func (w *watcher) follow(ctx context.Context, from uint64) error {
	bookmarks := time.NewTicker(w.cfg.Bookmarks)
	defer bookmarks.Stop()
	info := w.kind.info()
	for {
		events, last, news, err := w.state.since(from, batch)
		if err != nil {
			return err
		}
		from = last
		for _, e := range events {
			if e.kind != w.kind {
				continue
			}
			// A deleted object is sent in its last state, with the revision of its deletion.
			if o := w.selected(w.kind, w.query, e.number, e.after); o != nil {
				if err := w.encoder.event(e.what, info.version, info.kind, o); err != nil {
					return err
				}
			}
		}
		if len(events) > 0 {
			continue
		}
		if err := w.flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		case <-bookmarks.C:
			if w.query.bookmarks {
				if err := w.bookmark(from, nil); err != nil {
					return err
				}
			}
		}
	}
}

// echo accepts a created object and returns it.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}
