package value

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Values from JSON and back.

// MaxDepth is how deeply lists and maps may be nested in a parsed document.
const MaxDepth = 128

// SyntaxError says why Parse refused a document and where.
type SyntaxError struct {
	Offset int64  // bytes before the offending place
	Reason string // what is wrong there, in plain words
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.Offset, e.Reason)
}

// A parser is what reads a document, which the next one is read with: it is larger than
// most of them.
type parser struct {
	dec  jsontext.Decoder
	text bytes.Buffer
}

var parsers = sync.Pool{New: func() any { return new(parser) }}

// maxPooled is the largest document, in bytes, that leaves its parser to the next one:
// a parser keeps the room that it needed.
const maxPooled = 4 << 10

// Parse reads one JSON document (RFC 8259) strictly: valid UTF-8 without a byte
// order mark, no lone surrogates, no duplicate keys, at most MaxDepth levels,
// no number over 4,300 characters, no float that a double cannot hold, nothing
// after the document. It keeps the order of keys and the text of numbers. The
// error is a *SyntaxError.
func Parse(json []byte) (Value, error) {
	p := parsers.Get().(*parser)
	p.text = *bytes.NewBuffer(json)
	p.dec.Reset(&p.text)
	defer func() {
		if len(json) <= maxPooled {
			p.text = bytes.Buffer{}
			parsers.Put(p)
		}
	}()
	dec := &p.dec
	v, err := parseValue(dec)
	if err != nil {
		return Value{}, refused(dec, err, json)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("more text after the end of the document")
		}
		return Value{}, refused(dec, err, json)
	}
	return v, nil
}

// refused turns an error of the decoder or of this file into a SyntaxError.
func refused(dec *jsontext.Decoder, err error, json []byte) *SyntaxError {
	var at *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &SyntaxError{int64(len(json)), "unexpected end of the document"}
	case errors.As(err, &at) && errors.Is(err, jsontext.ErrDuplicateName):
		return &SyntaxError{at.ByteOffset, "duplicate key"}
	case errors.As(err, &at) && at.Err != nil:
		return &SyntaxError{at.ByteOffset, at.Err.Error()}
	default:
		return &SyntaxError{dec.InputOffset(), err.Error()}
	}
}

func parseValue(dec *jsontext.Decoder) (Value, error) {
	if dec.StackDepth() >= MaxDepth {
		if k := dec.PeekKind(); k == '{' || k == '[' {
			return Value{}, fmt.Errorf("nested deeper than %d levels", MaxDepth)
		}
	}
	tok, err := dec.ReadToken()
	if err != nil {
		return Value{}, err
	}
	switch tok.Kind() {
	case 'n':
		return Value{}, nil
	case 't', 'f':
		return OfBool(tok.Bool()), nil
	case '"':
		return Value{kind: String, text: tok.String()}, nil
	case '0':
		return numberOf(tok.String())
	case '[':
		return parseList(dec)
	default:
		return parseMap(dec)
	}
}

func parseList(dec *jsontext.Decoder) (Value, error) {
	var room [8]Value // most lists are short
	items := room[:0]
	for dec.PeekKind() != ']' {
		item, err := parseValue(dec)
		if err != nil {
			return Value{}, err
		}
		items = append(items, item)
	}
	if _, err := dec.ReadToken(); err != nil {
		return Value{}, err
	}
	return OfList(items...), nil
}

func parseMap(dec *jsontext.Decoder) (Value, error) {
	var room [8]Pair // most maps are small
	pairs := room[:0]
	for dec.PeekKind() != '}' {
		key, err := dec.ReadToken() // the decoder lets nothing but a new string stand here
		if err != nil {
			return Value{}, err
		}
		name := key.String() // the token is gone with the next one
		item, err := parseValue(dec)
		if err != nil {
			return Value{}, err
		}
		pairs = append(pairs, Pair{name, item})
	}
	if _, err := dec.ReadToken(); err != nil {
		return Value{}, err
	}
	return mapOf(pairs), nil
}

// JSON returns the tree as compact JSON in the order of its keys, numbers as
// received. This is form (c) of the text that blocked patterns are matched on.
func (v Value) JSON() string { return string(v.AppendJSON(nil)) }

// AppendJSON appends JSON to dst.
func (v Value) AppendJSON(dst []byte) []byte {
	switch v.kind {
	case Null:
		return append(dst, "null"...)
	case Bool:
		return strconv.AppendBool(dst, v.bits == 1)
	case Number:
		return v.appendNumberJSON(dst)
	case String:
		return AppendQuote(dst, v.text)
	case List:
		dst = append(dst, '[')
		for i, item := range v.node.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = item.AppendJSON(dst)
		}
		return append(dst, ']')
	default:
		dst = append(dst, '{')
		for i := range v.node.pairs {
			if i > 0 {
				dst = append(dst, ',')
			}
			p := &v.node.pairs[i]
			dst = append(AppendQuote(dst, p.Key), ':')
			dst = p.Value.AppendJSON(dst)
		}
		return append(dst, '}')
	}
}

func (v Value) appendNumberJSON(dst []byte) []byte {
	switch {
	case v.text != "":
		return append(dst, v.text...)
	case v.form == formInt:
		return strconv.AppendInt(dst, v.int(), 10)
	}
	f := v.float()
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	// Python's float repr is a JSON number, and json.dumps writes just that.
	return appendReprFloat(dst, f)
}

// AppendQuote appends a text as a JSON string. What is not UTF-8 in it, which no
// text in a tree is, is replaced.
func AppendQuote(dst []byte, text string) []byte {
	start := len(dst)
	dst = append(append(dst, '"'), text...)
	if isPlain(dst[start+1:]) {
		return append(dst, '"')
	}
	dst, _ = jsontext.AppendQuote(dst[:start], text)
	return dst
}

// isPlain reports whether a text of JSON stands for itself: ASCII without control
// characters, quotes and backslashes, as nearly every text is. It looks at eight
// bytes at once.
func isPlain(text []byte) bool {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	for ; len(text) >= 8; text = text[8:] {
		// Of bytes below 0x80, a subtraction makes the high bit of those that are
		// smaller, and it may make that of their neighbours: a text too many is not
		// plain, never one too few.
		x := binary.LittleEndian.Uint64(text)
		control, quote, backslash := x-ones*' ', (x^ones*'"')-ones, (x^ones*'\\')-ones
		if (x|control|quote|backslash)&high != 0 {
			return false
		}
	}
	for _, c := range text {
		if c < 0x20 || c >= 0x80 || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
