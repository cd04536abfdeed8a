package debian

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// mirrorVariable names a mirror on machines whose own sources have none.
const mirrorVariable = "FAIRLEAD_DEBIAN_MIRROR"

// errNoMirror says what to do on a machine that does not run Debian.
var errNoMirror = errors.New("find a mirror of Debian: the sources of this machine name none; set " + mirrorVariable +
	" to one, such as https://HOST/debian, and install debian-archive-keyring")

// mirror is where Debian's packages come from. The choice is private to the machine: the mirror
// must not appear in messages or in files that are kept.
type mirror struct {
	main, security string
}

// findMirror returns the mirror given by the variable, or else the one that the machine is
// configured for.
func findMirror() (mirror, error) {
	if uri := strings.TrimSuffix(os.Getenv(mirrorVariable), "/"); uri != "" {
		return mirror{main: uri, security: uri + "-security"}, nil
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return mirror{}, fmt.Errorf("identify the distribution: %w", err)
	}
	if !isDebian(string(release)) {
		return mirror{}, errNoMirror
	}
	// apt understands all formats of its sources, and answers even before it has fetched a list.
	targets, err := exec.Command("apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Identifier: Packages").Output()
	if err != nil {
		return mirror{}, fmt.Errorf("read the sources of this machine: %w", err)
	}
	return parseTargets(bytes.NewReader(targets))
}

func isDebian(release string) bool {
	return regexp.MustCompile(`(?m)^ID=["']?debian["']?$`).MatchString(release)
}

// parseTargets takes the first source of each kind. Suites with security updates are recognized by
// their name; they have a separate archive.
func parseTargets(targets io.Reader) (mirror, error) {
	var m mirror
	lines := bufio.NewScanner(targets)
	for lines.Scan() {
		suite, uri, ok := strings.Cut(lines.Text(), " ")
		uri = strings.TrimSuffix(uri, "/")
		switch {
		case !ok:
		case isSecurity(suite):
			m.security = cmp.Or(m.security, uri)
		case strings.HasSuffix(uri, "/debian"):
			m.main = cmp.Or(m.main, uri)
		}
	}
	if err := lines.Err(); err != nil {
		return mirror{}, fmt.Errorf("read the sources of this machine: %w", err)
	}
	if m.main == "" {
		return mirror{}, errNoMirror
	}
	if m.security == "" {
		m.security = m.main + "-security"
	}
	return m, nil
}

func isSecurity(suite string) bool { return strings.HasSuffix(suite, "-security") }

// of returns the URI of a suite's archive.
func (m mirror) of(suite string) string {
	if isSecurity(suite) {
		return m.security
	}
	return m.main
}

// hide replaces everything that names the mirror.
func (m mirror) hide(text []byte) []byte {
	for _, uri := range []string{m.main, m.security} {
		text = bytes.ReplaceAll(text, []byte(uri), []byte("MIRROR"))
		if _, rest, ok := strings.Cut(uri, "://"); ok {
			host, _, _ := strings.Cut(rest, "/")
			host, _, _ = strings.Cut(host, ":")
			text = bytes.ReplaceAll(text, []byte(host), []byte("MIRROR"))
		}
	}
	return text
}
