package main

import (
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// Building the image with a container engine gives the same programs, built by the same Go version,
// with the same labels.
func TestDockerfile(t *testing.T) {
	read := func(path string) string {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	file, module := read("../Dockerfile"), read("../../go.mod")
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(module)
	lines := []string{
		"FROM golang:" + version[1] + " AS build",
		"RUN CGO_ENABLED=0 GOOS=linux go build " + strings.Join(buildFlags(), " ") + " -o /out/ ./cmd/...",
		"FROM scratch",
		"COPY --from=build /out/" + strings.Join(names(), " /out/") + " /",
		`ENTRYPOINT ["/` + names()[0] + `"]`,
	}
	// What depends on the commit, which no file of the tree can know, is an argument.
	commit := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "$REVISION"}, {Key: "vcs.time", Value: "$CREATED"}}}
	for name, value := range labelsOf(&program{info: commit}) {
		if name == "org.opencontainers.image.version" {
			value = "$VERSION"
		}
		lines = append(lines, "LABEL "+name+`="`+value+`"`)
	}
	have := strings.Split(file, "\n")
	for _, want := range lines {
		if !slices.Contains(have, want) {
			t.Errorf("deploy/Dockerfile has no line %s", want)
		}
	}
	// The engine gets the tree without what make and the tests leave in it, which grows to
	// gigabytes.
	ignored := strings.Split(read("../Dockerfile.dockerignore"), "\n")
	for line := range strings.Lines(read("../../.gitignore")) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "testdata") {
			continue
		}
		if !slices.Contains(ignored, line) && !slices.Contains(ignored, "**/"+line) {
			t.Errorf("deploy/Dockerfile.dockerignore does not leave out %s", line)
		}
	}
}
