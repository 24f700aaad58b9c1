package engine

import (
	"log/slog"
	"net/http"
	"time"

	"example.com/govnode/engine/external"
)

// Options of Compile.
type options struct {
	strict     bool
	cedar      external.BackendLoader
	rego       external.BackendLoader
	guardrails []external.GuardrailProvider
	client     *http.Client
	budget     time.Duration
	ceiling    time.Duration
	log        *slog.Logger
}

// An Option changes how a tree is compiled or evaluated.
type Option func(*options)

// WithStrict compiles in strict mode, whatever the tree says.
func WithStrict() Option { return func(o *options) { o.strict = true } }

// WithCedar gives the loader for *.cedar files and their entities.json.
func WithCedar(load external.BackendLoader) Option { return func(o *options) { o.cedar = load } }

// WithRego gives the loader for *.rego files and their data.json.
func WithRego(load external.BackendLoader) Option { return func(o *options) { o.rego = load } }

// WithGuardrails adds providers of the program's own before those that the
// tree names.
func WithGuardrails(providers ...external.GuardrailProvider) Option {
	return func(o *options) { o.guardrails = append(o.guardrails, providers...) }
}

// WithHTTPClient replaces the client that guardrail endpoints are called with.
func WithHTTPClient(c *http.Client) Option { return func(o *options) { o.client = c } }

// WithBudget bounds the time one evaluation may spend in backends.
func WithBudget(d time.Duration) Option { return func(o *options) { o.budget = d } }

// DefaultCeiling is the time, from the first search of a long text on, after
// which an evaluation is given up, and denied, that is still searching. What a search costs is bounded by the caps on
// patterns and arguments; this bounds how many of the worst are run in a row.
const DefaultCeiling = time.Second

// WithCeiling changes DefaultCeiling.
func WithCeiling(d time.Duration) Option { return func(o *options) { o.ceiling = d } }

// WithLogger sets where fail-closed decisions are logged, redacted.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.log = l } }
