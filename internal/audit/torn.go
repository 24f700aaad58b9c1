package audit

import "bytes"

// A piece is what a file has in the place of a line.
type piece struct {
	at   *placed
	text []byte
}

// torn says what is wrong with the pieces before a line. Where a disk was full a node that
// loses no line writes it again, whole: the piece is how it begins then, and says nothing
// that the line does not.
func (v *verifier) torn(all []piece, line []byte) {
	for _, p := range all {
		if !bytes.HasPrefix(line, p.text) {
			v.wrong(p.at, "this is no whole line of the log: it was cut off by a crash, or changed")
		}
	}
}
