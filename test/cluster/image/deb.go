package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Fetch downloads Debian packages and all their dependencies into a directory, from the sources of
// this machine's apt, and returns the files. It ignores what is installed here, and installs
// nothing.
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
	args = append(args, packages...)
	if out, err := exec.Command("apt-get", args...).CombinedOutput(); err != nil {
		// The lists may be missing, or name versions that are gone.
		if update, updateErr := exec.Command("apt-get", "update").CombinedOutput(); updateErr != nil {
			return nil, fmt.Errorf("fetch packages: %w\n%s\nupdate apt's lists: %w\n%s", err, out, updateErr, update)
		}
		if out, err = exec.Command("apt-get", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("fetch packages: %w\n%s", err, out)
		}
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, fmt.Errorf("fetch packages: %w", err)
	}
	slices.Sort(debs)
	return debs, nil
}

// deb adds the files of a Debian package. Its scripts do not run, so a program that needs more than
// its files will not work.
func (l layer) deb(file string) {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", file)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		err = l.copy(tar.NewReader(out))
		_, drained := io.Copy(io.Discard, out)
		err = errors.Join(err, drained, cmd.Wait())
	}
	if err != nil {
		l.Fail(fmt.Errorf("unpack %s: %w", filepath.Base(file), err))
	}
}

// copy adds the files of a package, except those that nobody reads in a container.
func (l layer) copy(from *tar.Reader) error {
	for {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			return nil
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
		header.Name, header.Uname, header.Gname = name, "", ""
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
