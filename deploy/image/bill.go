package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// spdxType is the predicate type of a statement that carries an SPDX document.
const spdxType = "https://spdx.dev/Document"

// bill is a software bill of materials in SPDX 2.3: the programs, and the modules that each is made
// of, as the linker recorded them.
type bill struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []component    `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type component struct {
	Name      string     `json:"name"`
	ID        string     `json:"SPDXID"`
	Version   string     `json:"versionInfo"`
	Download  string     `json:"downloadLocation"`
	Analyzed  bool       `json:"filesAnalyzed"`
	Purpose   string     `json:"primaryPackagePurpose,omitempty"`
	Checksums []checksum `json:"checksums,omitempty"`
	Refs      []ref      `json:"externalRefs"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type ref struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const (
	documentID = "SPDXRef-DOCUMENT"
	unasserted = "NOASSERTION"
)

// billOf returns the bill of programs that were built together.
func billOf(programs []*program) *bill {
	b := &bill{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: documentID, Name: repository,
		// Unique to this document, and the same for the same programs each time.
		Namespace: "https://" + repository + "/spdx/" + programs[0].sum,
		Creation:  creation{Created: programs[0].time().UTC().Format(time.RFC3339), Creators: []string{"Tool: " + repository + "/deploy/image"}},
	}
	for _, p := range programs {
		id := b.add(component{
			Name: p.name, Version: p.version(), Purpose: "APPLICATION", Checksums: []checksum{{"SHA256", p.sum}},
			Refs: purl(p.info.Main.Path, p.version()),
		})
		b.relate(documentID, "DESCRIBES", id)
		b.relate(id, "DEPENDS_ON", b.add(component{
			Name: "stdlib", Version: strings.TrimPrefix(p.info.GoVersion, "go"), Refs: purl("stdlib", strings.TrimPrefix(p.info.GoVersion, "go")),
		}))
		for _, module := range p.info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			b.relate(id, "DEPENDS_ON", b.add(component{Name: module.Path, Version: module.Version, Refs: purl(module.Path, module.Version)}))
		}
	}
	slices.SortFunc(b.Packages, func(x, y component) int { return cmp.Compare(x.ID, y.ID) })
	return b
}

func purl(path, version string) []ref {
	return []ref{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}}
}

var notInIDs = regexp.MustCompile(`[^A-Za-z0-9.-]`)

// add adds a component unless it is there, and returns its id.
func (b *bill) add(c component) string {
	c.ID = "SPDXRef-" + notInIDs.ReplaceAllString(c.Name+"-"+c.Version, "-")
	c.Download = unasserted
	if !slices.ContainsFunc(b.Packages, func(have component) bool { return have.ID == c.ID }) {
		b.Packages = append(b.Packages, c)
	}
	return c.ID
}

func (b *bill) relate(from, kind, to string) {
	b.Relationships = append(b.Relationships, relationship{from, kind, to})
}

func (b *bill) write(path string) error {
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the bill of materials: %w", err)
	}
	return nil
}
