package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Fetch downloads Debian packages and all that they depend on into a directory, from where apt on this machine gets its
// own, and returns the files. What is installed here plays no part, and apt's state is left as it is.
func Fetch(dir string, packages []string) ([]string, error) {
	status := filepath.Join(dir, "status")
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "partial"), 0o755), os.WriteFile(status, nil, 0o644))
	if err != nil {
		return nil, fmt.Errorf("fetch packages: %w", err)
	}
	args := []string{
		"-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + dir, "-o", "Debug::NoLocking=1",
		"-o", "APT::Sandbox::User=root", "--no-install-recommends", "--download-only", "--yes", "install",
	}
	var text bytes.Buffer
	cmd := exec.Command("apt-get", append(args, packages...)...)
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("fetch packages: %w (if apt's lists are old: apt-get update)\n%s", err, text.Bytes())
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, fmt.Errorf("fetch packages: %w", err)
	}
	slices.Sort(debs)
	return debs, nil
}

// Deb adds the files of a Debian package. Its scripts do not run: a program that needs more than its files does not
// work.
func (l *LayerWriter) Deb(file string) {
	if l.err != nil {
		return
	}
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", file)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		l.err = fmt.Errorf("unpack %s: %w", filepath.Base(file), err)
		return
	}
	err = l.copy(tar.NewReader(out))
	_, drained := io.Copy(io.Discard, out)
	if err = errors.Join(err, drained, cmd.Wait()); err != nil {
		l.err = fmt.Errorf("unpack %s: %w", filepath.Base(file), err)
	}
}

// copy adds what a package has, less what nobody reads in a container.
func (l *LayerWriter) copy(from *tar.Reader) error {
	for {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			return l.err
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(header.Name, "./")
		if unread(name) || isMerged(strings.TrimSuffix(name, "/")) {
			continue
		}
		if header.Typeflag == tar.TypeLink {
			header.Linkname = inUsr(strings.TrimPrefix(header.Linkname, "./"))
		}
		header.Uname, header.Gname = "", ""
		l.add(header, from)
	}
}

func unread(name string) bool {
	for _, dir := range []string{"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/bash-completion/", "usr/share/lintian/"} {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return false
}
