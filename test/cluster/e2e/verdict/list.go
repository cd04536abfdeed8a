package verdict

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Scope says which runs include a spec.
type Scope string

// The scopes.
const (
	Smoke Scope = "smoke" // also in the short run
	Full  Scope = "full"  // in runs whose focus matches it
	Never Scope = "never" // in no run
)

// Cluster holds the properties of a cluster that rows can depend on.
type Cluster struct {
	Proxy  string // what serves Services: "fairlead", or the mode of kube-proxy
	Family string
	Nodes  int
	Minor  int // minor version of Kubernetes: 36 for 1.36
}

// Row is a line of the list of expected results.
type Row struct {
	Scope  Scope
	Expect Result // "" for Never
	When   string
	Spec   string // the full name, or a prefix of it if Prefix is set
	Prefix bool
	Reason string

	line int
}

// List is the expected results of the specs, in the order of the file.
type List struct{ rows []Row }

// header is the first line of a list that is not a comment.
const header = "run\texpect\twhen\tspec\treason"

// ParseList reads a list and checks everything that can be checked without a run. Its error lists
// all mistakes.
func ParseList(from io.Reader) (*List, error) {
	list := &List{}
	var problems []error
	lines := bufio.NewScanner(from)
	titled := false
	for number := 1; lines.Scan(); number++ {
		line := lines.Text()
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
		case !titled:
			if titled = true; line != header {
				problems = append(problems, fmt.Errorf("line %d: want the columns %q", number, header))
			}
		default:
			row, err := parseRow(line)
			if row.line = number; err == nil {
				err = list.check(row)
			}
			if err != nil {
				problems = append(problems, fmt.Errorf("line %d: %w", number, err))
			}
			list.rows = append(list.rows, row)
		}
	}
	if len(list.rows) == 0 {
		problems = append(problems, errors.New("it is empty"))
	}
	if err := errors.Join(append(problems, lines.Err())...); err != nil {
		return nil, fmt.Errorf("read expected results: %w", err)
	}
	return list, nil
}

func parseRow(line string) (Row, error) {
	fields := strings.Split(line, "\t")
	if len(fields) == 4 {
		fields = append(fields, "")
	}
	if len(fields) != 5 {
		return Row{}, fmt.Errorf("%d columns, want %q", len(fields), header)
	}
	row := Row{Scope: Scope(fields[0]), Expect: Result(fields[1]), When: fields[2], Spec: fields[3], Reason: fields[4]}
	if row.Expect == "-" {
		row.Expect = ""
	}
	row.Spec, row.Prefix = strings.CutSuffix(row.Spec, "*")
	switch {
	case row.Scope == Never && row.Expect != "":
		return row, fmt.Errorf("it never runs, and yet %q is expected of it, want -", row.Expect)
	case row.Scope != Never && !slices.Contains([]Result{Pass, Fail, Skip}, row.Expect):
		return row, fmt.Errorf("expect %q: it is pass, fail or skip", row.Expect)
	case !slices.Contains([]Scope{Smoke, Full, Never}, row.Scope):
		return row, fmt.Errorf("run %q: it is smoke, full or never", row.Scope)
	case row.Scope == Smoke && (row.Prefix || row.Expect != Pass):
		return row, errors.New("the short run has single specs that pass")
	case row.Spec == "" || row.Spec != oneLine(row.Spec) && row.Spec != oneLine(row.Spec)+" ":
		return row, fmt.Errorf("spec %q: there is a blank too many, or nothing", row.Spec)
	case row.Expect != Pass && strings.TrimSpace(row.Reason) == "":
		return row, errors.New("what does not pass needs a reason")
	}
	_, err := (Cluster{}).fits(row.When)
	return row, err
}

// check rejects a row that repeats the spec and the conditions of an earlier one.
func (l *List) check(row Row) error {
	for _, other := range l.rows {
		if other.Spec == row.Spec && other.Prefix == row.Prefix && other.When == row.When {
			return fmt.Errorf("the spec is in line %d too", other.line)
		}
	}
	return nil
}

// conditions returns the number of conditions of a row.
func (r Row) conditions() int {
	if r.When == always {
		return 0
	}
	return len(strings.Fields(r.When))
}

const always = "any"

// numbered matches a condition that contains a number.
var numbered = regexp.MustCompile(`^(nodes<|kubernetes[<>]1\.)(\d+)$`)

// fits reports whether the cluster meets all the conditions.
func (c Cluster) fits(when string) (bool, error) {
	fits := true
	for _, condition := range strings.Split(when, " ") {
		switch condition {
		case always:
		case "fairlead", "iptables", "nftables":
			fits = fits && c.Proxy == condition
		case "kube-proxy":
			fits = fits && (c.Proxy == "iptables" || c.Proxy == "nftables")
		case "ipv4", "dual", "ipv6":
			fits = fits && c.Family == condition
		default:
			found := numbered.FindStringSubmatch(condition)
			if found == nil {
				return false, fmt.Errorf("when %q: it is any, or some of fairlead, kube-proxy, iptables, nftables, ipv4, dual, ipv6, nodes<N, kubernetes<1.N, kubernetes>1.N", when)
			}
			bound, err := strconv.Atoi(found[2])
			if err != nil {
				return false, fmt.Errorf("when %q: %w", when, err)
			}
			switch found[1] {
			case "nodes<":
				fits = fits && c.Nodes < bound
			case "kubernetes<1.":
				fits = fits && c.Minor < bound
			case "kubernetes>1.":
				fits = fits && c.Minor > bound
			}
		}
	}
	return fits, nil
}

// In returns the rows that apply to the cluster.
func (l *List) In(cluster Cluster) *List {
	found := &List{}
	for _, row := range l.rows {
		if fits, _ := cluster.fits(row.When); fits {
			found.rows = append(found.rows, row)
		}
	}
	return found
}

func (r Row) matches(name string) bool {
	return name == r.Spec || r.Prefix && strings.HasPrefix(name, r.Spec)
}

// Find returns the most specific row for a spec: the row with its full name, or else the one with
// the longest matching prefix. Among rows with equal names, the one with most conditions wins, then
// the first. A spec without a row is expected to pass.
func (l *List) Find(name string) Row {
	best := Row{Scope: Full, Expect: Pass}
	for _, row := range l.rows {
		if row.matches(name) && (best.line == 0 || row.saysMore(best)) {
			best = row
		}
	}
	return best
}

func (r Row) saysMore(than Row) bool {
	if r.Prefix != than.Prefix {
		return !r.Prefix
	}
	if len(r.Spec) != len(than.Spec) {
		return len(r.Spec) > len(than.Spec)
	}
	return r.conditions() > than.conditions()
}

// suiteName is prepended by the suite to every name before it matches a focus.
const suiteName = "Kubernetes e2e suite "

// Smoke returns a regular expression matching the specs of the short run.
func (l *List) Smoke() string { return l.pattern(Smoke) }

// Never returns a regular expression matching the specs that must not run, or "" if there are none.
func (l *List) Never() string { return l.pattern(Never) }

func (l *List) pattern(scope Scope) string {
	var specs []string
	for _, row := range l.rows {
		if row.Scope != scope {
			continue
		}
		spec := regexp.QuoteMeta(row.Spec)
		if !row.Prefix {
			spec += " *$" // some of upstream's names end in a space
		}
		specs = append(specs, spec)
	}
	if len(specs) == 0 {
		return ""
	}
	return "^" + suiteName + "(" + strings.Join(specs, "|") + ")"
}
