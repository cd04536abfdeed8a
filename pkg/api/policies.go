package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"fairlead.io/fairlead/pkg/policies"
)

// Policies answers questions about the policies that an agent enforces.
type Policies interface {
	// Names returns what the numbers of rules mean.
	Names() []policies.RuleName
	List() policies.Listing
	Get(name string) (policies.Found, error)
	Explain(policies.Question) ([]policies.Answer, error)
	// Audit says what the policies in a file of that name would cut.
	Audit(name string, text []byte) (policies.Audit, error)
}

// MaxAudit is how long a file with policies may be that an audit looks at.
const MaxAudit = 4 << 20

// noPolicies is what an agent answers that enforces none.
const noPolicies = "policies are not enforced on this node, see --policies"

// policies adds what is answered about policies.
func (h Handlers) policies(mux *http.ServeMux) {
	ask := func(pattern string, reply func(http.ResponseWriter, *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if h.Policies == nil {
				answer(w, http.StatusNotImplemented, failure{noPolicies})
				return
			}
			body, err := reply(w, r)
			if err != nil {
				answer(w, http.StatusBadRequest, failure{err.Error()})
				return
			}
			answer(w, http.StatusOK, body)
		})
	}
	ask("GET /v1/policies/rules", func(http.ResponseWriter, *http.Request) (any, error) { return h.Policies.Names(), nil })
	ask("GET /v1/policies", func(http.ResponseWriter, *http.Request) (any, error) { return h.Policies.List(), nil })
	ask("GET /v1/policies/get", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return h.Policies.Get(r.URL.Query().Get("name"))
	})
	ask("POST /v1/policies/audit", func(w http.ResponseWriter, r *http.Request) (any, error) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxAudit))
		if err != nil {
			return nil, fmt.Errorf("read policies: %w", err)
		}
		return h.Policies.Audit(r.URL.Query().Get("name"), text)
	})
	ask("GET /v1/policies/explain", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		v := r.URL.Query()
		ports, err := policies.ParsePorts(v.Get("ports"))
		if err != nil {
			return nil, err
		}
		return h.Policies.Explain(policies.Question{From: v.Get("from"), To: v.Get("to"), Ports: ports})
	})
}

// PolicyRules returns what the numbers of rules of policies mean.
func (c *Client) PolicyRules(ctx context.Context) ([]policies.RuleName, error) {
	var list []policies.RuleName
	err := c.do(ctx, http.MethodGet, "/v1/policies/rules", nil, &list)
	return list, err
}

// Policies returns the policies that select pods of the node.
func (c *Client) Policies(ctx context.Context) (policies.Listing, error) {
	var list policies.Listing
	err := c.do(ctx, http.MethodGet, "/v1/policies", nil, &list)
	return list, err
}

// Policy returns the pods of the node and the policies that have a name.
func (c *Client) Policy(ctx context.Context, name string) (policies.Found, error) {
	var found policies.Found
	err := c.do(ctx, http.MethodGet, "/v1/policies/get?"+url.Values{"name": {name}}.Encode(), nil, &found)
	return found, err
}

// ExplainPolicies returns what policies say about what one address sends to another.
func (c *Client) ExplainPolicies(ctx context.Context, q policies.Question) ([]policies.Answer, error) {
	var answers []policies.Answer
	v := url.Values{"from": {q.From}, "to": {q.To}, "ports": {q.Ports.String()}}
	err := c.do(ctx, http.MethodGet, "/v1/policies/explain?"+v.Encode(), nil, &answers)
	return answers, err
}

// AuditPolicies returns what the policies in a file of that name would cut among the flows of the node.
func (c *Client) AuditPolicies(ctx context.Context, name string, text []byte) (policies.Audit, error) {
	var audit policies.Audit
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/v1/policies/audit?"+url.Values{"name": {name}}.Encode(), bytes.NewReader(text))
	if err != nil {
		return audit, fmt.Errorf("make request: %w", err)
	}
	patient := *c
	patient.http = &http.Client{Timeout: verifyTimeout, Transport: c.http.Transport}
	answer, err := patient.send(request)
	if err != nil {
		return audit, err
	}
	if err := json.Unmarshal(answer, &audit); err != nil {
		return audit, fmt.Errorf("read the agent's answer about policies: %w", err)
	}
	return audit, nil
}
