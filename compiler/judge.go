package compiler

import (
	"fmt"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
)

// judge is what the sanity rules want to know of one judge, in any workload.
// Every value may be nil.
type judge struct {
	at       *tree.Value // where a finding goes that has no better place
	model    *tree.Value // model_path
	context  *tree.Value // the field that sets the context length
	sampling *tree.Value // sampling_config in force
	// maxResponse is the length of a verdict where sampling does not say.
	maxResponse int64
	// prompt is the longest prompt in tokens that is known to be asked, 0 when
	// it is not known; promptOf says what it is made of.
	prompt   int64
	promptOf string
	// strict says that only an exact verdict counts, such as dapo-genrm's "1".
	strict bool
}

// shortVerdict is the verdict length below which a judge that thinks first
// likely never reaches its verdict.
const shortVerdict = 512

// judgeSanity reports judges that run but cannot judge well: the verdict does
// not fit the context, the thoughts eat the verdict, the verdict is drawn by
// lot. Each finding is placed at the field that has to change.
func (e *experiment) judgeSanity(j judge) {
	facts := e.modelFacts(j.model)
	context, hasContext := j.context.AsInt()
	response, at := j.maxResponse, j.at
	if v := j.sampling.Field("max_response_len"); v != nil {
		n, ok := v.AsInt()
		if !ok {
			n = 0
		}
		response, at = n, v
	}
	related := func() []diag.Related {
		if j.context == nil {
			return nil
		}
		return []diag.Related{{Pos: j.context.Pos, Message: "the context length"}}
	}
	if hasContext && response > 0 {
		switch {
		case response >= context:
			e.report("GRM4501", diag.Error, at,
				fmt.Sprintf("a verdict of %d tokens leaves no room for the prompt in a context of %d", response, context),
				fmt.Sprintf("The context holds prompt and response together: %d − %d = %d tokens are left for the prompt.", context, response, context-response),
				fmt.Sprintf("lower max_response_len below %d, or raise the context length", context), related()...)
		case j.prompt > 0 && j.prompt+response > context:
			e.report("GRM4502", diag.Warning, at,
				fmt.Sprintf("the longest prompt and verdict need %d tokens, but the context has %d", j.prompt+response, context),
				fmt.Sprintf("%s + %d (verdict) = %d > %d; requests with such prompts fail, and a failed judgement is easily taken for a score of 0.", j.promptOf, response, j.prompt+response, context),
				fmt.Sprintf("raise the context length to at least %d, or shorten what the judge is shown", j.prompt+response), related()...)
		}
	}
	if longest, ok := facts.Field("max_position_embeddings").AsInt(); ok && hasContext && context > longest {
		e.report("GRM4503", diag.Warning, j.context,
			fmt.Sprintf("a context of %d tokens is longer than the %d that the model was made for", context, longest),
			"Engines refuse to start with it unless they are told to allow longer contexts.",
			fmt.Sprintf("use at most %d", longest),
			diag.Related{Pos: facts.KeyPos("max_position_embeddings"), Message: "what models states of it"})
	}
	thinks := facts.Field("reasoning").IsTrue()
	if off, ok := j.sampling.Lookup("chat_template_kwargs", "enable_thinking").AsBool(); ok && !off {
		thinks = false
	}
	if j.strict && j.model.OK() && facts.Field("reasoning") == nil && j.sampling.Lookup("chat_template_kwargs", "enable_thinking") == nil {
		e.fact(e.relative(j.model), "not checked that the judge answers without thinking first, as dapo-genrm's exact \"1\" needs: models states no reasoning of "+e.modelText(j.model))
	}
	if thinks && (j.strict || response > 0 && response < shortVerdict) {
		detail := fmt.Sprintf("The model writes its thoughts before its verdict; a verdict of at most %d tokens is likely cut off before it is reached, and reads as 0.", response)
		if j.strict {
			detail = "The model writes its thoughts before its verdict, and dapo-genrm gives a score only for the exact answer \"1\": every reward is likely 0."
		}
		e.report("GRM4504", diag.Warning, at, "a judge that thinks first is asked for a short verdict, and its thinking is not switched off", detail,
			"set sampling_config: chat_template_kwargs: enable_thinking: false",
			diag.Related{Pos: facts.KeyPos("reasoning"), Message: "models states that it reasons"})
	}
	if v := j.sampling.Field("temperature"); v != nil {
		if t, ok := v.AsFloat(); ok && t > 0.1 {
			e.report("GRM4505", diag.Note, v, fmt.Sprintf("a temperature of %s makes verdicts vary from call to call", v.Text),
				"The same answer may be judged right once and wrong the next time, which trains as noise.",
				"use 0.1 or less unless that is meant")
		}
	}
}
