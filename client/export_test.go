package client

// Plain has what goes over streams encoded by the generated code.
func Plain(c *Config) { c.wire = plain{} }
