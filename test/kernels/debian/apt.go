package debian

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// apt is Debian's package client for one suite, with its own state, lists and configuration in a
// directory that Close removes. It neither reads nor writes the machine's package state, but keeps
// its settings for reaching servers.
type apt struct {
	suite  string
	dir    string
	mirror mirror
}

// openApt fetches the list of the suite's packages.
func openApt(ctx context.Context, suite string) (_ *apt, err error) {
	m, err := findMirror()
	if err != nil {
		return nil, err
	}
	keyring, err := findKeyring()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fairlead-apt-")
	if err != nil {
		return nil, fmt.Errorf("create package state: %w", err)
	}
	a := &apt{suite: suite, dir: dir, mirror: m}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if err := a.configure(ctx, keyring); err != nil {
		return nil, err
	}
	if _, err := a.run(ctx, "", "apt-get", "-q", "update"); err != nil {
		return nil, fmt.Errorf("list packages of %s: %w", suite, err)
	}
	return a, nil
}

// Close removes the directory.
func (a *apt) Close() error { return os.RemoveAll(a.dir) }

func findKeyring() (string, error) {
	for _, name := range []string{"debian-archive-keyring.gpg", "debian-archive-keyring.pgp"} {
		if path := filepath.Join("/usr/share/keyrings", name); exists(path) {
			return path, nil
		}
	}
	return "", errors.New("find the keys of Debian: apt-get install debian-archive-keyring")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// configure writes the configuration and the source. It accepts expired lists, since those of
// suites without further updates expire; the pinned checksums make an old list harmless.
func (a *apt) configure(ctx context.Context, keyring string) error {
	for _, dir := range []string{"state/lists/partial", "cache/archives/partial", "none"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return fmt.Errorf("create package state: %w", err)
		}
	}
	network, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return fmt.Errorf("read the settings of apt: %w", err)
	}
	conf := fmt.Sprintf(`Dir::State "%[1]s/state";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Etc::SourceList "%[1]s/sources.list";
Dir::Etc::SourceParts "%[1]s/none";
Dir::Etc::Preferences "%[1]s/none/preferences";
Dir::Etc::PreferencesParts "%[1]s/none";
Dir::Etc::Main "%[1]s/none/main";
Dir::Etc::Parts "%[1]s/none";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
Acquire::Retries "3";
APT::Update::Error-Mode "any";
%[2]s`, a.dir, networkSettings(network))
	source := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, a.mirror.of(a.suite), a.suite)
	for name, content := range map[string]string{"apt.conf": conf, "sources.list": source, "status": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("configure apt: %w", err)
		}
	}
	return nil
}

// networkSettings extracts the settings by which this machine reaches servers, such as a proxy.
func networkSettings(dump []byte) string {
	setting := regexp.MustCompile(`(?m)^Acquire::(https?|ftp|ForceIPv[46]|Proxy)\b.*\n`)
	return string(bytes.Join(setting.FindAll(dump, -1), nil))
}

// run returns the output of one of apt's commands. The error includes its error output.
func (a *apt) run(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", args[0], args[len(args)-1], err, a.mirror.hide(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// available returns the packages of the suite whose names begin with linux-.
func (a *apt) available(ctx context.Context) ([]Package, error) {
	stanzas, err := a.run(ctx, "", "apt-cache", "dumpavail")
	if err != nil {
		return nil, fmt.Errorf("list packages of %s: %w", a.suite, err)
	}
	return parsePackages(bytes.NewReader(stanzas))
}

// parsePackages parses stanzas of fields, each of which ends with an empty line.
func parsePackages(stanzas io.Reader) ([]Package, error) {
	var found []Package
	var p Package
	lines := bufio.NewScanner(stanzas)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "Package":
			p = Package{Name: value}
		case "Version":
			p.Version = value
		case "SHA256":
			p.SHA256 = value
		case "":
			if strings.HasPrefix(p.Name, "linux-") {
				found = append(found, p)
			}
			p = Package{}
		}
	}
	if strings.HasPrefix(p.Name, "linux-") {
		found = append(found, p)
	}
	return found, lines.Err()
}

// download downloads the package's file to dir and returns its path.
func (a *apt) download(ctx context.Context, p Package, dir string) (string, error) {
	if _, err := a.run(ctx, dir, "apt-get", "-q", "download", p.Name+"="+p.Version); err != nil {
		return "", fmt.Errorf("download %s: %w", p.Name, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, p.Name+"_*.deb"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("download %s: found %d files, want one", p.Name, len(files))
	}
	file, err := os.Open(files[0])
	if err != nil {
		return "", fmt.Errorf("check %s: %w", p.Name, err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("check %s: %w", p.Name, err)
	}
	if have := hex.EncodeToString(sum.Sum(nil)); have != p.SHA256 {
		return "", fmt.Errorf("check %s %s: its SHA-256 is %s, pinned is %s", p.Name, p.Version, have, p.SHA256)
	}
	return files[0], nil
}
