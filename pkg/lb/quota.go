package lb

import (
	"fmt"
	"strconv"
	"strings"
)

// Quota is an amount of what all Services share: rows of the maps, and the time of the agent that
// writes them. As a limit, 0 stands for none.
type Quota struct {
	Frontends int // rows of svcs that lead to a Service
	Hosted    int // rows of svcs by which other nodes reach its backends here
	Backends  int // endpoints times the ports that lead to them
	Slots     int
}

// QuotaFields is the number of amounts in a Quota.
const QuotaFields = 4

// QuotaNames name the amounts in a Quota, as in the options.
var QuotaNames = [QuotaFields]string{"frontends", "hosted", "backends", "slots"}

// Values returns the amounts in the order of QuotaNames.
func (q Quota) Values() [QuotaFields]int {
	return [QuotaFields]int{q.Frontends, q.Hosted, q.Backends, q.Slots}
}

type quotaField struct {
	name string
	at   *int
}

func (q *Quota) fields() []quotaField {
	at := [QuotaFields]*int{&q.Frontends, &q.Hosted, &q.Backends, &q.Slots}
	fields := make([]quotaField, QuotaFields)
	for i, name := range QuotaNames {
		fields[i] = quotaField{name, at[i]}
	}
	return fields
}

// ParseQuota reads limits of the form "frontends=16384,backends=131072". What is not named has no
// limit.
func ParseQuota(text string) (Quota, error) {
	var q Quota
	for _, part := range strings.Split(text, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(part), "=")
		n, err := strconv.ParseInt(number, 10, 32)
		known := false
		for _, f := range q.fields() {
			if f.name == name {
				known, *f.at = true, int(n)
			}
		}
		if !known || err != nil || n < 1 || n >= 1<<30 {
			return Quota{}, fmt.Errorf("quota %.64q is not like frontends=16384,hosted=32768,backends=131072,slots=1048576", text)
		}
	}
	return q, nil
}

// Add returns the sum of two amounts.
func (q Quota) Add(o Quota) Quota {
	return Quota{q.Frontends + o.Frontends, q.Hosted + o.Hosted, q.Backends + o.Backends, q.Slots + o.Slots}
}

// Less returns the difference of two amounts.
func (q Quota) Less(o Quota) Quota {
	return Quota{q.Frontends - o.Frontends, q.Hosted - o.Hosted, q.Backends - o.Backends, q.Slots - o.Slots}
}

// Left returns what is left of a limit, but 1 if nothing is, since 0 stands for no limit.
func (q Quota) Left(limit Quota) Quota {
	left := limit.Less(q)
	for i, f := range left.fields() {
		if most := limit.fields()[i]; *most.at == 0 {
			*f.at = 0
		} else {
			*f.at = max(1, *f.at)
		}
	}
	return left
}

// Exceeds returns the first limit that an amount exceeds, as in "1024 backends", or "".
func (q Quota) Exceeds(limit Quota) string {
	limits := limit.Values()
	for i, amount := range q.Values() {
		if limits[i] != 0 && amount > limits[i] {
			return fmt.Sprintf("%d %s", limits[i], QuotaNames[i])
		}
	}
	return ""
}

// slotsEach returns how many slots each table of a Service can have at most. That depends on the
// Service alone, since Maglev tables must be the same on every node.
func (c *Compiler) slotsEach(tables int) int {
	if c.facts.Quota.Slots == 0 || tables == 0 {
		return MaxSlots
	}
	return max(1, min(MaxSlots, c.facts.Quota.Slots/tables))
}
