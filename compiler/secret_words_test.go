package compiler

import (
	"strings"
	"testing"

	"genrm.dev/genrm/compiler/tree"
)

// TestSecretWords: what is refused, as the name that is shown and the value that
// is not, and what looks like it and is no secret.
func TestSecretWords(t *testing.T) {
	for _, c := range []struct {
		doc  string
		want string // what the secret is for; "" when there is none
	}{
		{`{"extra_args": ["--wandb-key", "hunter2"]}`, "--wandb-key"},
		{`{"extra_args": ["--my-api-key=hunter2"]}`, "--my-api-key"},
		{`{"setup": ["set -e", "export HF_TOKEN=hunter2"]}`, "HF_TOKEN"},
		{`{"setup": ["HF_TOKEN=\"hunter2\" run"]}`, "HF_TOKEN"},
		{`{"ref_actor_config": "{\"api_key\": \"hunter2\"}"}`, "api_key"},
		{`{"openai_api_key": "${oc.env:KEY,hunter2}"}`, "openai_api_key"},
		{`{"overrides": {"policy_model.api_key": "${oc.env:KEY,hunter2}"}}`, "policy_model.api_key"},
		{`{"extra_args": ["--wandb-key", "--other"]}`, ""},
		{`{"extra_args": ["--api-key", "EMPTY"]}`, ""},
		{`{"extra_args": ["--name", "hunter2"]}`, ""},
		{`{"setup": ["export HF_TOKEN=$(cat /run/token)", "export HF_TOKEN=\"$OTHER\"", "test \"$HF_TOKEN\" != 1"]}`, ""},
		{`{"openai_api_key": "${oc.env:KEY,EMPTY}", "x": "${oc.env:KEY,plain}"}`, ""},
		{`{"base_url": "https://h/v1?a=b:c"}`, ""},
	} {
		root, err := tree.ParseJSON(c.doc)
		if err != nil {
			t.Fatal(err)
		}
		e := &experiment{}
		e.secretWords("", root)
		switch {
		case c.want == "" && len(e.diags) > 0:
			t.Errorf("%s: %+v", c.doc, e.diags)
		case c.want != "" && (len(e.diags) != 1 || e.diags[0].Code != "GRM1008" || !e.diags[0].Secret || e.diags[0].Summary != "a literal secret for "+c.want):
			t.Errorf("%s: want %s, got %+v", c.doc, c.want, e.diags)
		}
		for _, d := range e.diags {
			if strings.Contains(d.Summary+d.Detail+d.Remedy, "hunter2") {
				t.Errorf("%s: the secret is repeated: %+v", c.doc, d)
			}
		}
	}
}
