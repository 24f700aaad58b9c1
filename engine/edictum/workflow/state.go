package workflow

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

const (
	approved = "approved"

	mostEvidence = 1000 // of one kind
	longest      = 4096 // characters of one
	mostResult   = 16 << 10
)

// A State is how far a session has come in a workflow.
type State struct {
	Session   string
	Active    string // the stage; empty once the workflow is over
	Completed []string
	Approvals map[string]string // by stage
	Reads     []string          // files
	Calls     map[string][]string
	Results   map[string][]value.Value // of tools, each a mapping

	Blocked  *string // why the last call was blocked
	Pending  Pending
	LastBad  *Note // the last call that was blocked
	LastGood *Note // the last call that is evidence

	// Open are the calls that run: where they were admitted, and what they will be
	// evidence of. Asked are the approvals of stages.
	Open  map[string]Running
	Asked map[string]string
}

// Pending is what people are asked.
type Pending struct {
	Required bool
	Stage    string
	Message  string
}

// A Note tells of a call.
type Note struct{ Tool, Summary, Message, Time string }

// Running is a call that was admitted.
type Running struct{ Stage, Tool, Command, File string }

// New is the State of a session that begins.
func (d *Definition) New(session string) *State {
	return &State{Session: session, Active: d.Stages[0].ID}
}

// Clone copies a State.
func (s *State) Clone() *State {
	c := *s
	c.Completed, c.Reads = slices.Clone(s.Completed), slices.Clone(s.Reads)
	c.Approvals, c.Open, c.Asked = maps.Clone(s.Approvals), maps.Clone(s.Open), maps.Clone(s.Asked)
	c.Calls, c.Results = clones(s.Calls), clones(s.Results)
	return &c
}

func clones[V any](m map[string][]V) map[string][]V {
	c := maps.Clone(m)
	for k, v := range c {
		c[k] = slices.Clone(v)
	}
	return c
}

// Note keeps in the State what a verdict said of a call, at a time.
func (s *State) Note(v Verdict, c *Call, at string) {
	s.Blocked, s.Pending = nil, Pending{}
	switch v.Action {
	case edictum.Block:
		s.Blocked = &v.Reason
		s.LastBad = &Note{Tool: c.Tool, Summary: summary(c), Message: fitting(v.Reason, ""), Time: at}
	case edictum.Ask:
		s.Pending = Pending{Required: true, Stage: v.Stage, Message: fitting(v.Reason, "")}
		s.LastBad = nil
	}
}

// Approve takes down that people have approved a stage.
func (s *State) Approve(stage string) {
	if s.Approvals == nil {
		s.Approvals = map[string]string{}
	}
	s.Approvals[stage] = approved
	s.Blocked, s.Pending = nil, Pending{}
	delete(s.Asked, stage)
}

// Executed takes down a call that succeeded in the stage in which it was admitted, with
// its result if that is a mapping that counts, and completes the last stage where that
// is all it waited for. What is no fit evidence is left out.
func (d *Definition) Executed(s *State, stage string, c *Call, result value.Value, at string) {
	if stage == "" {
		return
	}
	if n := (Note{Tool: c.Tool, Summary: summary(c)}); s.LastGood == nil || s.LastGood.Tool != n.Tool || s.LastGood.Summary != n.Summary {
		n.Time = at
		s.LastGood = &n
	}
	switch {
	case c.Tool == "Read" && c.File != "":
		if fit(c.File) && !slices.Contains(s.Reads, c.File) && len(s.Reads) < mostEvidence {
			s.Reads = append(s.Reads, c.File)
		}
	case c.Tool == "Bash" && c.Command != "":
		s.Calls = with(s.Calls, stage, c.Command, fit(c.Command))
	}
	if result.Kind() == value.Map && c.Tool != "Read" {
		kept := evidence(result)
		json := kept.JSON()
		s.Results = with(s.Results, c.Tool, kept, len(json) <= mostResult && readable(json))
	}
	i := d.stage(stage)
	if s.Active != stage || i < 0 || i+1 < len(d.Stages) || d.Stages[i].Terminal {
		return
	}
	last := &d.Stages[i]
	if len(last.Exit) == 0 && last.Approval == "" || unmet(last.Exit, s, stage) != nil || last.Approval != "" && s.Approvals[stage] != approved {
		return
	}
	d.leave(i, s)
}

// with appends to a list of a map, up to a bound.
func with[V any](m map[string][]V, key string, v V, fits bool) map[string][]V {
	if !fits || len(m[key]) >= mostEvidence {
		return m
	}
	if m == nil {
		m = map[string][]V{}
	}
	m[key] = append(m[key], v)
	return m
}

// evidence is a result as it is kept: null as an empty text, so that no gate takes it
// for a word, and texts that are no evidence as empty ones.
func evidence(result value.Value) value.Value {
	var pairs []value.Pair
	for name, v := range result.All() {
		if text, isText := v.AsString(); isText && !fit(text) || v.Kind() == value.Null {
			v = value.OfString("")
		}
		pairs = append(pairs, value.Pair{Key: name, Value: v})
	}
	return value.OfMap(pairs...)
}

// Reset takes a State back to a stage, and what was done from there on out of it.
func (d *Definition) Reset(s *State, stage string) error {
	i := d.stage(stage)
	if i < 0 {
		return fmt.Errorf("the workflow %s has no stage %q", d.Name, stage)
	}
	d.stand(s, i)
	if i == 0 {
		s.Reads, s.Results = nil, nil
	}
	for k := range d.Stages[i:] {
		gone := &d.Stages[i+k]
		delete(s.Approvals, gone.ID)
		delete(s.Calls, gone.ID)
		delete(s.Asked, gone.ID)
		for tool := range s.Results {
			if len(gone.tools) > 0 && gone.takes(tool) {
				delete(s.Results, tool)
			}
		}
	}
	return nil
}

// SetStage takes a State to a stage, with all that was done.
func (d *Definition) SetStage(s *State, stage string) error {
	i := d.stage(stage)
	if i < 0 {
		return fmt.Errorf("the workflow %s has no stage %q", d.Name, stage)
	}
	d.stand(s, i)
	s.LastBad = nil
	if at := &d.Stages[i]; at.Approval != "" && s.Approvals[stage] != approved {
		s.Pending = Pending{Required: true, Stage: stage, Message: at.Approval}
	}
	return nil
}

func (d *Definition) stand(s *State, i int) {
	s.Active, s.Completed = d.Stages[i].ID, nil
	for k := range i {
		s.Completed = append(s.Completed, d.Stages[k].ID)
	}
	s.Blocked, s.Pending, s.Open = nil, Pending{}, nil
}

// Looks reports whether a gate looks at results of a tool.
func (d *Definition) Looks(tool string) bool { return d.results[tool] }

// readable reports whether a result can be read again from a State, where it is nested in
// four more: else nobody could read the State any more.
func readable(json string) bool {
	_, err := value.Parse([]byte("[[[[" + json + "]]]]"))
	return err == nil
}

// fit reports whether a text may be evidence.
func fit(text string) bool { return utf8.RuneCountInString(text) <= longest && !control(text) }

func fitting(text, instead string) string {
	if fit(text) {
		return text
	}
	return instead
}

// summary is a call in a few words, without its secrets.
func summary(c *Call) string {
	switch {
	case c.Command != "":
		return fitting(edictum.RedactText(c.Command), c.Tool)
	case c.File != "":
		return fitting(edictum.RedactText(c.File), c.Tool)
	}
	return c.Tool
}
