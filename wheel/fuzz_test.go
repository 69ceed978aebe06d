package wheel

import "testing"

// FuzzWheel reads its input as a program, two bytes an operation: what to do,
// and how far, as an exponent and a mantissa. An odd number of bytes means small batches.
func FuzzWheel(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0x11, 0, 0x8f, 0, 0xff, 3, 0xf0, 3, 0xff})             // add near, far; advance
	f.Add([]byte{0, 0x85, 0, 0x85, 2, 0, 2, 1, 2, 1, 3, 0x90})             // cancel, twice
	f.Add([]byte{0, 0xa3, 0, 0x41, 3, 0x81, 4, 0xb2, 0, 0x22, 3, 0xc0})    // set back before start
	f.Add([]byte{1, 0x77, 0, 0, 6, 0x31, 0, 0x30, 6, 0x91, 5, 0x92, 3, 1}) // past dues, in pieces
	// Give way.
	f.Add([]byte{0, 8, 0, 8, 0, 8, 0, 9, 0, 0x95, 0, 0x95, 2, 1, 6, 12, 0, 1, 2, 2, 4, 4, 3, 0x9f, 2})
	f.Fuzz(func(t *testing.T, program []byte) {
		now := int64(sometime)
		p := newPair(t, 1, now)
		if len(program)%2 == 1 {
			p.inBatchesOf(1 + int(program[len(program)-1]%8))
		}
		for ; len(program) >= 2 && len(p.timers) < 500; program = program[2:] {
			far := int64(program[1]&15) << (program[1] >> 4 * 3)
			switch program[0] % 7 {
			case 0:
				p.add(now + far)
			case 1:
				p.add(now - far)
			case 2:
				if i := int(program[1]); i < len(p.timers) {
					p.cancel(p.timers[i])
				}
			case 3:
				now += far
				p.advance(now)
			case 4:
				now -= far
				p.advance(now)
			case 5:
				now -= far
				p.rewind(now)
			case 6:
				now += far
				p.takeSome(now, 1+int(far%4))
			}
			p.check()
		}
	})
}
