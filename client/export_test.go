package client

import "example.com/govnode/client/internal/wire"

// Plain has what goes over streams encoded by the generated code.
func Plain(c *Config) { c.wire = wire.Plain{} }
