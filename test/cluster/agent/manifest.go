package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"net"
	"text/template"
)

//go:embed daemonset.yaml
var daemonSet string

// Settings are what may differ from the agent's defaults. A field that is empty is left out of the manifest.
type Settings struct {
	APIServer  string // host and port
	CgroupRoot string
	Routing    string   // of pods that get their network from the agent; another plugin gives it if this is empty
	Options    []string // more of the agent, such as --dsr=ipip
}

// render returns the manifest of a DaemonSet that runs the image.
func render(image string, settings Settings) ([]byte, error) {
	values := struct {
		Image, CgroupRoot, Host, Port, Routing string
		Options                                []string
	}{Image: image, CgroupRoot: settings.CgroupRoot, Routing: settings.Routing, Options: settings.Options}
	if settings.APIServer != "" {
		var err error
		if values.Host, values.Port, err = net.SplitHostPort(settings.APIServer); err != nil {
			return nil, fmt.Errorf("render manifest: API server: %w", err)
		}
	}
	form, err := template.New("daemonset").Option("missingkey=error").Parse(daemonSet)
	if err != nil {
		return nil, fmt.Errorf("render manifest: %w", err)
	}
	var manifest bytes.Buffer
	if err := form.Execute(&manifest, values); err != nil {
		return nil, fmt.Errorf("render manifest: %w", err)
	}
	return manifest.Bytes(), nil
}
