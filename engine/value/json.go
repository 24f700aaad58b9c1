package value

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

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

// Parse reads one JSON document (RFC 8259) strictly: valid UTF-8 without a byte
// order mark, no lone surrogates, no duplicate keys, at most MaxDepth levels,
// no number over 4,300 characters, no float that a double cannot hold, nothing
// after the document. It keeps the order of keys and the text of numbers. The
// error is a *SyntaxError.
func Parse(json []byte) (Value, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(json))
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
		return appendJSONString(dst, v.text)
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
			dst = append(appendJSONString(dst, p.Key), ':')
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

// appendJSONString cannot fail: every text in a tree is valid UTF-8.
func appendJSONString(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s)
	return dst
}
