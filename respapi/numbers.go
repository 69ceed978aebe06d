package respapi

import (
	"bytes"
	"math/big"
	"strings"

	"github.com/lapsehq/lapse/respapi/internal/resp"
)

// number returns an argument that is an integer. It answers what is wrong and reports false if it
// is none.
func (x *call) number(arg []byte, wrong string) (n int64, ok bool) {
	if n, ok = resp.ParseInt(arg); !ok {
		x.out.Error(wrong)
	}
	return n, ok
}

// timeout returns an argument that is a time in milliseconds; see number.
func (x *call) timeout(arg []byte) (n int64, ok bool) {
	if n, ok = x.number(arg, "ERR timeout is not an integer or out of range"); ok && n < 0 {
		x.out.Error("ERR timeout is negative")
	}
	return n, ok && n >= 0
}

// Redis computes INCRBYFLOAT with the numbers of 80 bits that x86 has.
const (
	floatBits     = 64     // of the mantissa
	mostExponent  = 16_384 // of two
	mostFloatText = 255    // bytes
)

// parseFloat reads a number as strtold does, without nan. It reports false for what does not fit.
func parseFloat(b []byte) (*big.Float, bool) {
	if len(b) == 0 || len(b) > mostFloatText || bytes.ContainsAny(b, "_ \t\r\n\v\f") {
		return nil, false
	}
	text, base := strings.ToLower(string(b)), 10
	number := strings.TrimLeft(text, "+-")
	if strings.HasPrefix(number, "0x") {
		base = 0
	} else if strings.ContainsAny(number, "p") {
		return nil, false // an exponent of two, which only Go has here
	}
	if number == "infinity" {
		text = strings.TrimSuffix(text, "inity")
	}
	f, _, err := big.ParseFloat(text, base, floatBits, big.ToNearestEven)
	if err != nil || !f.IsInf() && !fits(f) {
		return nil, false
	}
	return f, true
}

// fits reports whether a number that is not infinite has 80 bits.
func fits(f *big.Float) bool {
	return f.Sign() == 0 || f.MantExp(nil) <= mostExponent && f.MantExp(nil) >= -mostExponent
}

// addFloat returns the sum of two numbers as Redis writes it, "" if it is infinite.
func addFloat(a, b *big.Float) string {
	if a.IsInf() || b.IsInf() {
		return ""
	}
	sum := new(big.Float).SetPrec(floatBits).SetMode(big.ToNearestEven).Add(a, b)
	if !fits(sum) {
		return ""
	}
	text := sum.Text('f', 17)
	text = strings.TrimRight(text, "0")
	text = strings.TrimSuffix(text, ".")
	if text == "-0" || text == "" {
		return "0"
	}
	return text
}
