package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
)

// unposted returns Events that are queued but not posted, and their clock.
func unposted(t *testing.T) (*Events, *time.Time) {
	t.Helper()
	src, err := New(Config{
		REST: &rest.Config{Host: "http://127.0.0.1:1"}, NodeName: node, Store: model.NewStore(node), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_900_000_000, 0)
	src.events.now = func() time.Time { return now }
	return src.events, &now
}

func webKey(n int) model.Key {
	return model.Key{Kind: model.KindService, Name: model.Name{Namespace: "ns", Name: fmt.Sprint("web", n)}}
}

func TestEventsRepeat(t *testing.T) {
	e, now := unposted(t)
	pod := webKey(0)
	pod.Kind = model.KindPod
	for _, step := range []struct {
		what    string
		key     model.Key
		uid     string
		reason  string
		message string
		after   time.Duration
		posted  bool
	}{
		{"the first", webKey(0), "u", "R", "m", 0, true},
		{"the same", webKey(0), "u", "R", "m", 0, false},
		{"another object", webKey(1), "u", "R", "m", 0, true},
		{"another kind", pod, "u", "R", "m", 0, true},
		{"the next object of that name", webKey(0), "v", "R", "m", 0, true},
		{"another reason", webKey(0), "u", "S", "m", 0, true},
		{"another message", webKey(0), "u", "R", "n", 0, true},
		{"the same, just too early", webKey(0), "u", "R", "m", eventRepeat - 1, false},
		{"the same, ten minutes later", webKey(0), "u", "R", "m", 1, true},
	} {
		*now = now.Add(step.after)
		before := len(e.queue)
		e.Warn(step.key, step.uid, step.reason, step.message)
		if posted := len(e.queue) > before; posted != step.posted {
			t.Errorf("%s: posted %v, want %v", step.what, posted, step.posted)
		}
	}
}

// TestEventsAreBounded checks that someone who creates faulty objects cannot make the agent wait or
// grow.
func TestEventsAreBounded(t *testing.T) {
	e, now := unposted(t)
	warn := func(from, to int) {
		for i := from; i < to; i++ {
			e.Warn(webKey(i), "u", "R", "m")
		}
	}
	warn(0, eventQueue+10)
	if len(e.queue) != eventQueue || e.Dropped() != 10 {
		t.Fatalf("queued %d and dropped %d", len(e.queue), e.Dropped())
	}
	<-e.queue
	warn(eventQueue, eventQueue+1)
	if len(e.queue) != eventQueue {
		t.Error("an event that was dropped cannot be posted later")
	}
	drained := 0
	for i := range 2 * eventMemory {
		warn(i, i+1)
		for ; len(e.queue) > 0; drained++ {
			<-e.queue
		}
	}
	if len(e.posted) != eventMemory {
		t.Errorf("remembers %d events, want %d at most", len(e.posted), eventMemory)
	}
	*now = now.Add(eventRepeat)
	warn(0, 1)
	if len(e.posted) != 1 || len(e.queue) != 1 {
		t.Errorf("after ten minutes it remembers %d and queued %d, want one", len(e.posted), len(e.queue))
	}
}

func TestClip(t *testing.T) {
	for _, test := range []struct {
		text string
		most int
		want string
	}{
		{"short", 5, "short"},
		{"longer", 5, "lo..."},
		{"ééé", 5, "é..."},
		{"ééé", 6, "ééé"},
		{"a\xffb", 5, "a?b"},
		{strings.Repeat("é", 600), 1024, strings.Repeat("é", 510) + "..."},
	} {
		got := clip(test.text, test.most)
		if got != test.want || !utf8.ValidString(got) || len(got) > test.most {
			t.Errorf("clip(%q, %d) = %q, want %q", test.text, test.most, got, test.want)
		}
	}
}

func TestRefused(t *testing.T) {
	resource := schema.GroupResource{Resource: "events"}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewForbidden(resource, "x", errors.New("no")), true},
		{apierrors.NewNotFound(resource, "x"), true},
		{fmt.Errorf("post: %w", apierrors.NewBadRequest("bad")), true},
		{apierrors.NewTooManyRequests("later", 1), false},
		{apierrors.NewInternalError(errors.New("broken")), false},
		{errors.New("connection refused"), false},
	} {
		if got := refused(test.err); got != test.want {
			t.Errorf("refused(%v) = %v", test.err, got)
		}
	}
}

// TestNodeEventsRepeat checks that a node that is degraded again, for the same reason, gets another
// event, but not at once.
func TestNodeEventsRepeat(t *testing.T) {
	e, now := unposted(t)
	names := map[string]bool{}
	for _, step := range []struct {
		what            string
		warning         bool
		reason, message string
		after           time.Duration
		posted          bool
	}{
		{"the first", true, "Bad", "m", 0, true},
		{"other words", true, "Bad", "n", 0, false},
		{"well again", false, "Good", "m", time.Minute, true},
		{"bad again, too soon", true, "Bad", "m", eventRepeat - time.Minute - 1, false},
		{"bad again", true, "Bad", "m", 1, true},
		{"well again, too soon", false, "Good", "m", 0, false},
	} {
		*now = now.Add(step.after)
		if posted := e.Node("u", step.warning, step.reason, step.message); posted != step.posted {
			t.Errorf("%s: posted %v, want %v", step.what, posted, step.posted)
		}
		if !step.posted {
			continue
		}
		event := <-e.queue
		names[event.Name] = true
		object := event.InvolvedObject
		if event.Namespace != "default" || object.Kind != "Node" || object.Name != node || object.Namespace != "" || object.UID != "u" ||
			(event.Type == "Warning") != step.warning {
			t.Errorf("%s: %+v", step.what, event)
		}
	}
	if len(names) != 3 {
		t.Errorf("the three events have the names %v", names)
	}
	if e.Node("", true, "Other", "m"); (<-e.queue).InvolvedObject.UID != node {
		t.Error("the event of a node with unknown UID does not use its name as the UID")
	}
}

// TestStandingEvents checks that a lasting state has one event, whichever agent reports it and
// whatever the message; each node has its own.
func TestStandingEvents(t *testing.T) {
	names := map[string]bool{}
	for _, step := range []struct{ uid, reason, message string }{{"u", "Bad", "m"}, {"u", "Bad", "other words"}, {"v", "Bad", "m"}, {"u", "Worse", "m"}} {
		e, now := unposted(t) // as in an agent that has just started
		*now = now.Add(time.Duration(len(names)) * time.Minute)
		if !e.Standing(step.uid, step.reason, step.message) || e.Standing(step.uid, step.reason, step.message) {
			t.Errorf("%+v is not posted once", step)
		}
		event := <-e.queue
		names[event.Name] = true
		if object := event.InvolvedObject; event.Namespace != "default" || object.Kind != "Node" || object.Name != node || event.Message != step.message || event.Type != "Warning" {
			t.Errorf("%+v: %+v", step, event)
		}
	}
	if len(names) != 3 {
		t.Errorf("the three events have the names %v", names)
	}
}
