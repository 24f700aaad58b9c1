package engine_test

import (
	"context"
	"fmt"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
)

// A tree of one file, compiled once, judges calls.
func Example() {
	tree, err := engine.SingleFile(`
name: no-code-execution
rules:
  - name: block-execute
    condition: {field: tool_name, operator: eq, value: execute_code}
    action: deny
    priority: 100
    message: Code execution is not permitted in this environment
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	policy, err := engine.Compile(tree)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, tool := range []string{"execute_code", "read_file"} {
		d := policy.Evaluate(context.Background(), engine.Input{Tool: tool})
		fmt.Println(d.Allowed, d.Action, d.MatchedRule, "-", d.Reason)
	}
	// Output:
	// false deny block-execute - Code execution is not permitted in this environment
	// true allow  - No rules matched; default action applied
}

// A rule may look at what the service counts. The premise says for which
// counts the decision stands.
func ExamplePremise() {
	tree, err := engine.SingleFile(`
rules:
  - name: enough
    condition: {field: call_count, operator: gte, value: 5}
    action: deny
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	policy, err := engine.Compile(tree)
	if err != nil {
		fmt.Println(err)
		return
	}
	d := policy.Evaluate(context.Background(), engine.Input{
		Tool: "search", SessionID: "s-1", Facts: &engine.Facts{CallCount: 3},
		// What a caller claims about its own counts is not looked at.
		Context: value.OfMap(value.Pair{Key: "call_count", Value: value.OfInt(0)}),
	})
	fmt.Println(d.Allowed)
	for _, p := range d.Premises {
		fmt.Println(p.Fact, "from", p.Lo, "to", p.Hi)
	}
	// Output:
	// true
	// call_count from 0 to 4
}
