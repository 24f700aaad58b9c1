package client

import "example.com/govnode/client/internal/wire"

// Plain has what goes over streams encoded by the generated code.
func Plain(c *Config) { c.wire = wire.Plain{} }

// AnswerWithin is how long a node that need not wait takes for its answer at most.
const AnswerWithin = answerWithin
