package agent

import (
	"fmt"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/agent/cluster"
	"fairlead.io/fairlead/pkg/model"
)

// nodeEvents keeps the events about the node.
type nodeEvents struct {
	cluster.Events
	list []string
}

func (e *nodeEvents) Node(uid string, warning bool, reason, message string) bool {
	e.list = append(e.list, fmt.Sprintf("%s %t %s: %s", uid, warning, reason, message))
	return true
}

// TestRemovedPinsEvent checks that an event tells of pins that were restored.
func TestRemovedPinsEvent(t *testing.T) {
	store := model.NewStore("worker-1")
	store.SetNode(&model.Node{Name: "worker-1", UID: "uid-1"})
	events := &nodeEvents{}
	reportPins(store, events)([]string{"ct", "svcs"})
	if len(events.list) != 1 || !strings.HasPrefix(events.list[0], "uid-1 true PinsRemoved: ") || !strings.Contains(events.list[0], "(ct, svcs)") {
		t.Errorf("events: %q", events.list)
	}
	reportPins(store, nil)([]string{"ct"}) // there is no API server
}
