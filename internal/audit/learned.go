package audit

import "example.com/govnode/session"

// Where the answer to a change was lost there is a line without a link, and, once its node
// has learned what became of it, another one with it. That says nothing new where another
// attempt of the same was answered, or where several nodes have learned it: so the same
// link may be there more than once. It has to fit into its chain as any other.

// A saying is all that a line says of a link.
type saying struct {
	Link
	code    session.Code
	audited session.Digest
}

func (l *link) saying() saying { return saying{l.Link, l.code, l.audited} }

// learn adds the links that were learned later and that no other line has. What was asked
// for and is there now stands for nothing else.
func (v *verifier) learn() {
	there := map[saying]bool{}
	unknown := map[session.Digest][]*asked{}
	seen := map[session.Key]bool{}
	for _, l := range v.learned {
		if seen[l.Chain] {
			continue
		}
		seen[l.Chain] = true
		for _, other := range v.links[l.Chain] {
			there[other.saying()] = true
		}
		for _, a := range v.unknown[l.Chain] {
			unknown[a.digest] = append(unknown[a.digest], a)
		}
	}
	for _, l := range v.learned {
		if same := unknown[l.audited]; len(same) > 0 {
			same[0].used = true
			unknown[l.audited] = same[1:]
		}
		if is := l.saying(); !there[is] {
			there[is] = true
			v.links[l.Chain] = append(v.links[l.Chain], l)
		}
	}
}
