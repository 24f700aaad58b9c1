package input

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Decimals of the storage protocol, as millionths and back.

const (
	decimalPlaces = 6
	Million       = 1_000_000
)

var errDecimal = errors.New("must be a decimal such as 3, -0.5 or 12.25, with at most 6 digits behind the point and between -9223372036854.775808 and 9223372036854.775807")

// ParseDecimal reads a decimal as millionths, exactly. There is no exponent, no
// plus sign, and a digit on either side of a point.
func ParseDecimal(s string) (millionths int64, err error) {
	digits, negative := strings.CutPrefix(s, "-")
	whole, fraction, point := strings.Cut(digits, ".")
	if whole == "" || point && fraction == "" || len(fraction) > decimalPlaces || !allDigits(whole) || !allDigits(fraction) {
		return 0, errDecimal
	}
	u, err := strconv.ParseUint(whole+fraction+strings.Repeat("0", decimalPlaces-len(fraction)), 10, 64)
	switch {
	case err != nil:
		return 0, errDecimal
	case negative && u <= -math.MinInt64:
		return -int64(u), nil
	case !negative && u <= math.MaxInt64:
		return int64(u), nil
	}
	return 0, errDecimal
}

func allDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// FormatDecimal prints millionths in the one canonical way: no trailing zeros,
// no leading ones, no negative zero.
func FormatDecimal(millionths int64) string {
	u, sign := uint64(millionths), ""
	if millionths < 0 {
		u, sign = -u, "-"
	}
	s := sign + strconv.FormatUint(u/Million, 10)
	if rest := u % Million; rest != 0 {
		tail := strconv.FormatUint(Million+rest, 10)[1:]
		s += "." + strings.TrimRight(tail, "0")
	}
	return s
}
