package check

import "fmt"

// Signals holds that the log admits nothing new of an agent behind a STOP or a KILL
// of it, until that is lifted or a restore brings back another time; and that no
// session is open where a KILL is marked as swept. That the log agrees with the
// clock of who was answered is for Order to say.
func Signals(h History) (broken []Violation) {
	stands := map[string]Effect{} // by agent
	for _, e := range h.Effects {
		before, stood := stands[e.Agent]
		switch e.Kind {
		case Stop, Kill:
			stands[e.Object] = e
		case Continue:
			delete(stands, e.Object)
		case Restored:
			clear(stands)
		case Begin:
			if e.Granted && stood {
				broken = append(broken, Violation{"signals", fmt.Sprintf("call %s of %s was admitted at %d, behind the %s at %d", e.ID, e.Agent, e.Index, before.Kind, before.Index)})
			}
		case Swept:
			if e.Open > 0 {
				broken = append(broken, Violation{"signals", fmt.Sprintf("a KILL of %s is marked as swept at %d, with %d sessions open", e.Object, e.Index, e.Open)})
			}
		}
	}
	return broken
}
