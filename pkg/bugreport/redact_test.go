package bugreport

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// secretTexts returns texts in which every secret is called S3CRET.
func secretTexts() map[string]string {
	const body = "MIIBVgIBADANBgkqhkiG9w0S3CRET"
	return map[string]string{
		"a key":                        "x\n-----BEGIN RSA PRIVATE KEY-----\n" + body + "\nS3CRET\n-----END RSA PRIVATE KEY-----\ny\n",
		"a key on one line":            `{"message":"-----BEGIN EC PRIVATE KEY-----\n` + body + `\n-----END EC PRIVATE KEY-----\n"}`,
		"a certificate":                "-----BEGIN CERTIFICATE-----\n" + body + "\n-----END CERTIFICATE-----\n",
		"a key without an end":         "-----BEGIN PRIVATE KEY-----\n" + body + "\n" + body,
		"a token of an account":        "at eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrS3CRET.c2lnbmF0S3CRET end",
		"a token that is cut":          "eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrS3CRET",
		"a header":                     "Authorization: Bearer S3CRETabcdef",
		"a header alone":               "Authorization: S3CRETabcdef",
		"a header of another kind":     `{"authorization":"Digest S3CRET"}`,
		"a header in a sentence":       "the server refused bearer S3CRET-abc.def",
		"a header of a password":       "authorization: Basic dXNlcjpS3CRET==",
		"JSON":                         `{"password": "S3CRET", "a": 1}`,
		"JSON with quotes in it":       `{"clientSecret":"a\"S3CRET\\", "b": 2}`,
		"JSON in JSON":                 `{"message": "{\"password\":\"S3CRET x\",\"n\":1}"}`,
		"quoted in JSON":               `{"message": "the token=\"S3CRET y\" is bad"}`,
		"a list":                       `{"tokens": ["S3CRET", "S3CRET"], "secrets":{"a":"S3CRET"}}`,
		"YAML in quotes":               `'password': 'S3CRET x'`,
		"JSON without an end":          `{"token": "S3CRET`,
		"YAML":                         "data:\n  api-key: S3CRET\n  token:   'S3CRET x'\n  client-key-data: \"S3CRET y\"\n",
		"an environment":               "DB_PASSWORD=S3CRET\nMYSQL_ROOT_PASSWD=S3CRET AWS_SECRET_ACCESS_KEY=S3CRET/+x",
		"a command line":               "agent --hash-seed S3CRET --api-token=S3CRET --password 'S3CRET'",
		"the kernel's command line":    "quiet luks.passphrase=S3CRET root=/dev/vda",
		"an address of a server":       "https://user:S3CRET@example.com/x and http://:S3CRET@h",
		"a name in capitals":           "ACCESS-KEY: S3CRET",
		"a known secret":               "the seed was S3CRETknown and \"S3CRETknown\"",
		"a known one around another":   "S3CRETknown-S3CRETlonger",
		"a known one with line breaks": "S3CRETknown\n",
	}
}

func TestSecrets(t *testing.T) {
	r := NewRedactor([]string{"S3CRETknown\n", "S3CRETknown-S3CRETlonger", "x", ""})
	for name, text := range secretTexts() {
		got := string(r.Clean([]byte(text), false))
		if strings.Contains(got, "S3CRET") || !strings.Contains(got, redacted) {
			t.Errorf("%s: %q became %q", name, text, got)
		}
	}
	if got := string(r.Clean([]byte(secretTexts()["a key"]), false)); got != "x\n"+redacted+"\ny\n" {
		t.Errorf("the text around a key became %q", got)
	}
	for _, secret := range []string{"AKIAABCDEFGHIJKLMNOP", "ghp_0123456789abcdefghijABCDEFGHIJ", "xoxb-123456789012-abc"} {
		if got := string(r.Clean([]byte("is "+secret+" so"), false)); got != "is "+redacted+" so" {
			t.Errorf("%s became %q", secret, got)
		}
	}
}

// What is no secret stays, or a bundle would be useless.
func TestNoSecrets(t *testing.T) {
	r := NewRedactor([]string{"x", ""})
	for _, text := range []string{
		"svcs  Hash  12  48  25%  address, port, proto -> service index, kind",
		`{"name": "devices", "value": "auto", "from": "default"}`,
		"fairlead_datapath_packets_total{hook=\"sock\",reason=\"none\"} 70",
		"net/ipv4/tcp_fastopen = 1", "10.96.0.10:80/tcp  ClusterIP  1  shop/web:http/tcp4", "basic support, bearer of news", "2031-02-03T04:05:06Z",
		"goroutine 1 [select]:\nmain.runAgent(0xc000123456, {0x1, 0x2})\n\t/src/run.go:120 +0x1f\n",
		"Tcp: RtoAlgorithm RtoMin\nTcp: 1 200\n",
	} {
		if got := string(r.Clean([]byte(text), false)); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// Text that was cut off loses its last line, which may contain half a secret.
func TestCut(t *testing.T) {
	r := NewRedactor([]string{"S3CRETknown"})
	for text, want := range map[string]string{"one\ntwo S3CR": "one\n", "S3CRETkno": "", "one\n": "one\n", "": ""} {
		if got := string(r.Clean([]byte(text), true)); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// Whatever the input, the output is safe for terminals.
func TestText(t *testing.T) {
	got := NewRedactor(nil).Clean([]byte("a\x1b[2Jb\x00\xff\xfe\u009bc\r\n\td"), false)
	if !utf8.Valid(got) || bytes.ContainsAny(got, "\x1b\x00\r\u009b") || string(got) != "a?[2Jb???c?\n\td" && string(got) != "a?[2Jb??"+"?c?\n\td" {
		t.Errorf("%q", got)
	}
}

// A secret hidden by control characters or invalid UTF-8 is found, because cleaning comes first.
func TestHiddenSecret(t *testing.T) {
	r := NewRedactor([]string{"S3CRETknown"})
	if got := string(r.Clean([]byte("\x00S3CRETknown\x1b password\x00=S3CRET"), false)); strings.Contains(got, "S3CRETknown") {
		t.Errorf("%q", got)
	}
}

func TestIsSecret(t *testing.T) {
	for name, want := range map[string]bool{
		"DB_PASSWORD": true, "hash-seed": true, "FAIRLEAD_HASH_SEED": true, "GITHUB_TOKEN": true, "AWS_SECRET_ACCESS_KEY": true, "apiKey": true,
		"PATH": false, "devices": false, "KUBERNETES_SERVICE_HOST": false, "": false,
	} {
		if IsSecret(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, text := range secretTexts() {
		f.Add([]byte(text), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, cut bool) {
		r := NewRedactor([]string{"S3CRETknown"})
		r.Anonymize(NewPseudonyms(), map[string]string{"node-7": "this-node"})
		if got := r.Clean(text, cut); !utf8.Valid(got) || bytes.Contains(got, []byte("S3CRETknown")) {
			t.Errorf("%q became %q", text, got)
		}
	})
}
