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

// redacted stands for what is left out.
const redacted = "[redacted]"

// shortest is how long a known secret has to be to be looked for: shorter text is found everywhere.
const shortest = 6

// Redactor takes out of text what nobody else should see: what looks like a secret, and secrets that are known.
type Redactor struct {
	known      [][]byte
	patterns   []pattern
	blocks     *regexp.Regexp
	names      []name
	pseudonyms *Pseudonyms
}

// name is text that others should know by another.
type name struct {
	looks *regexp.Regexp
	as    string
}

// NewRedactor returns a Redactor that also takes out the known secrets, wherever they are.
func NewRedactor(known []string) *Redactor {
	r := &Redactor{patterns: patterns(), blocks: blocks()}
	for _, secret := range known {
		if secret = strings.TrimSpace(secret); len(secret) >= shortest {
			r.known = append(r.known, []byte(secret))
		}
	}
	// A secret that is a part of another would leave the rest of that.
	slices.SortFunc(r.known, func(a, b []byte) int { return cmp.Compare(len(b), len(a)) })
	return r
}

// Anonymize has the Redactor put pseudonyms in the place of addresses, and words in the place of names.
func (r *Redactor) Anonymize(p *Pseudonyms, names map[string]string) {
	r.pseudonyms = p
	for _, is := range slices.SortedFunc(maps.Keys(names), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }) {
		if len(is) > 1 {
			r.names = append(r.names, name{regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(is) + `\b`), names[is]})
		}
	}
}

// secretWord is a name whose value is left out, whatever that is.
const secretWord = `[\w.-]*(?:passw(?:or)?d|passwd|passphrase|secret|token|credential|api[_-]?key|private[_-]?key|access[_-]?key|client-key|client-certificate|` +
	`certificate-authority-data|hash-seed|hash_seed)[\w.-]*`

// secretName is such a name up to its value.
const secretName = `(?i)(\b` + secretWord + `\\*["']?[ \t]*[=:][ \t]*)`

// secretHints are parts of every secretWord, in lower case.
func secretHints() []string {
	return []string{"passw", "passphrase", "secret", "token", "credential", "api", "private", "access", "client-", "certificate-authority", "hash"}
}

// pattern is something that looks like a secret, and what stays of it. It is looked for in lines that have one of the hints,
// in lower case, since most lines have none, and to look through all of them would take a minute.
type pattern struct {
	hints []string
	looks *regexp.Regexp
	stays string
}

// blocks finds keys and certificates, of which the end may have been cut off.
func blocks() *regexp.Regexp {
	return regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)`)
}

func patterns() []pattern {
	return []pattern{
		{[]string{"eyj"}, regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?`), redacted}, // tokens of service accounts
		// headers; a word of letters alone is the next of a sentence
		{[]string{"authorization"}, regexp.MustCompile(`(?i)\b(authorization["']?[ \t]*[:=][ \t]*["']?(?:\w+[ \t]+)?)[^\s"',;]+`), "${1}" + redacted},
		{[]string{"bearer", "basic"}, regexp.MustCompile(`(?i)\b(bearer|basic)[ \t]+[a-z]*[\d_~+/=-][\w.~+/=-]*`), "${1} " + redacted},
		{[]string{"akia", "asia"}, regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`), redacted},                      // keys of clouds
		{[]string{"gh", "xox"}, regexp.MustCompile(`\bgh[pousr]_\w{20,}|\bxox[abprs]-[\w-]{10,}`), redacted},           // of forges and chats
		{[]string{"://"}, regexp.MustCompile(`([a-zA-Z][\w+.-]*://)[^/\s:@"']*:[^/\s@"']*@`), "${1}" + redacted + "@"}, // in addresses of servers
		// name: "value", and the same in a list, or in JSON that is text in JSON
		{secretHints(), regexp.MustCompile(secretName + `"(?:[^"\\]|\\.)*"?`), `${1}"` + redacted + `"`},
		{secretHints(), regexp.MustCompile(secretName + `(?:\\+"[^"]*"?|'[^']*'?|\[[^\]]*\]?|\{[^}]*\}?|[^\s"'\[{,;\\]+)`), "${1}" + redacted},
		{secretHints(), regexp.MustCompile(`(?i)(--` + secretWord + `[ \t]+)(?:'[^']*'?|"[^"]*"?|[^\s-]\S*)`), "${1}" + redacted},
	}
}

// clean returns the line without what the pattern finds. Lower is the line in lower case.
func (p *pattern) clean(line, lower []byte) []byte {
	if !slices.ContainsFunc(p.hints, func(hint string) bool { return bytes.Contains(lower, []byte(hint)) }) {
		return line
	}
	return p.looks.ReplaceAll(line, []byte(p.stays))
}

// Clean returns the text without secrets, control characters, and bytes that are no text. If it is cut off, the last line goes too:
// half a secret does not look like one.
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
		text = n.looks.ReplaceAllLiteral(text, []byte(n.as))
	}
	return text
}

// lines takes out of each line what looks like a secret.
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

// IsSecret reports whether the value of something of this name is left out.
func IsSecret(name string) bool {
	return regexp.MustCompile(`(?i)^` + secretWord + `$`).MatchString(name)
}
