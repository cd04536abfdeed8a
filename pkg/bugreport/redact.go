package bugreport

import (
	"bytes"
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// redacted replaces what is left out.
const redacted = "[redacted]"

// shortest is the minimum length of a known secret: shorter text would match everywhere.
const shortest = 6

// Redactor removes from text what nobody else should see: known secrets, and what looks like a
// secret.
type Redactor struct {
	known      [][]byte
	patterns   []pattern
	blocks     *regexp.Regexp
	names      []name
	pseudonyms *Pseudonyms
}

// name is text to be replaced by another name.
type name struct {
	form *regexp.Regexp
	as   string
}

// NewRedactor returns a Redactor that also removes the known secrets wherever they occur.
func NewRedactor(known []string) *Redactor {
	r := &Redactor{patterns: patterns(), blocks: blocks()}
	for _, secret := range known {
		if secret = strings.TrimSpace(secret); len(secret) >= shortest {
			r.known = append(r.known, []byte(secret))
		}
	}
	// Longest first: removing a secret that is part of a longer one would leave the rest of that.
	slices.SortFunc(r.known, func(a, b []byte) int { return cmp.Compare(len(b), len(a)) })
	return r
}

// Anonymize makes the Redactor replace addresses by pseudonyms, and the given names by others.
func (r *Redactor) Anonymize(p *Pseudonyms, names map[string]string) {
	r.pseudonyms = p
	for _, is := range slices.SortedFunc(maps.Keys(names), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }) {
		if len(is) > 1 {
			r.names = append(r.names, name{regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(is) + `\b`), names[is]})
		}
	}
}

// secretWord matches names whose values are always removed.
const secretWord = `[\w.-]*(?:passw(?:or)?d|passwd|passphrase|secret|token|credential|api[_-]?key|private[_-]?key|access[_-]?key|client-key|client-certificate|` +
	`certificate-authority-data|hash-seed|hash_seed)[\w.-]*`

// secretName matches such a name up to its value.
const secretName = `(?i)(\b` + secretWord + `\\*["']?[ \t]*[=:][ \t]*)`

// secretHints are lower-case substrings, one of which is in every match of secretWord.
func secretHints() []string {
	return []string{"passw", "passphrase", "secret", "token", "credential", "api", "private", "access", "client-", "certificate-authority", "hash"}
}

// pattern matches something that looks like a secret, and says what stays of it. It is applied only
// to lines that contain one of the hints in lower case: most lines contain none, and applying it to
// all of them would take a minute.
type pattern struct {
	hints []string
	form  *regexp.Regexp
	stays string
}

// blocks matches PEM keys and certificates, even if their end is cut off.
func blocks() *regexp.Regexp {
	return regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)`)
}

func patterns() []pattern {
	return []pattern{
		// Service account tokens.
		{[]string{"eyj"}, regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?`), redacted},
		// Headers. A word of letters only is ordinary text.
		{[]string{"authorization"}, regexp.MustCompile(`(?i)\b(authorization["']?[ \t]*[:=][ \t]*["']?(?:\w+[ \t]+)?)[^\s"',;]+`), "${1}" + redacted},
		{[]string{"bearer", "basic"}, regexp.MustCompile(`(?i)\b(bearer|basic)[ \t]+[a-z]*[\d_~+/=-][\w.~+/=-]*`), "${1} " + redacted},
		// Cloud access keys.
		{[]string{"akia", "asia"}, regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`), redacted},
		// Tokens of code forges and chats.
		{[]string{"gh", "xox"}, regexp.MustCompile(`\bgh[pousr]_\w{20,}|\bxox[abprs]-[\w-]{10,}`), redacted},
		// Credentials in URLs.
		{[]string{"://"}, regexp.MustCompile(`([a-zA-Z][\w+.-]*://)[^/\s:@"']*:[^/\s@"']*@`), "${1}" + redacted + "@"},
		// name: "value", also with a list as the value, and inside JSON that is a string in JSON
		{secretHints(), regexp.MustCompile(secretName + `"(?:[^"\\]|\\.)*"?`), `${1}"` + redacted + `"`},
		{secretHints(), regexp.MustCompile(secretName + `(?:\\+"[^"]*"?|'[^']*'?|\[[^\]]*\]?|\{[^}]*\}?|[^\s"'\[{,;\\]+)`), "${1}" + redacted},
		{secretHints(), regexp.MustCompile(`(?i)(--` + secretWord + `[ \t]+)(?:'[^']*'?|"[^"]*"?|[^\s-]\S*)`), "${1}" + redacted},
	}
}

// clean returns the line without what the pattern matches. lower is the line in lower case.
func (p *pattern) clean(line, lower []byte) []byte {
	if !slices.ContainsFunc(p.hints, func(hint string) bool { return bytes.Contains(lower, []byte(hint)) }) {
		return line
	}
	return p.form.ReplaceAll(line, []byte(p.stays))
}

// Clean returns the text without secrets, control characters and invalid UTF-8. If the text was cut
// off, its last line is dropped: half a secret does not look like one.
func (r *Redactor) Clean(text []byte, cut bool) []byte {
	if cut {
		text = text[:bytes.LastIndexByte(text, '\n')+1]
	}
	text = bytes.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			return '?'
		}
		return c
	}, bytes.ToValidUTF8(text, []byte("?")))
	for _, secret := range r.known {
		text = bytes.ReplaceAll(text, secret, []byte(redacted))
	}
	text = r.blocks.ReplaceAll(text, []byte(redacted))
	text = r.lines(text)
	if r.pseudonyms != nil {
		text = r.pseudonyms.replace(text)
	}
	for _, n := range r.names {
		text = n.form.ReplaceAllLiteral(text, []byte(n.as))
	}
	return text
}

// lines removes what looks like a secret from each line.
func (r *Redactor) lines(text []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(text))
	for line := range bytes.Lines(text) {
		lower := bytes.ToLower(line)
		for i := range r.patterns {
			line = r.patterns[i].clean(line, lower)
		}
		out.Write(line)
	}
	return out.Bytes()
}

// IsSecret reports whether values under this name are removed.
func IsSecret(name string) bool {
	return regexp.MustCompile(`(?i)^` + secretWord + `$`).MatchString(name)
}
