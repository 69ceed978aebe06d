package resp

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// A pipeline is read in few pieces, and what is read together waits for the ledger together. A
// connection whose commands come one at a time keeps a small buffer.
func TestPipelinesAreReadInLargePieces(t *testing.T) {
	const n = 2000
	command := []byte("*3\r\n$3\r\nSET\r\n$5\r\nkey:1\r\n$200\r\n" + strings.Repeat("v", 200) + "\r\n")
	taken := 0
	r := NewReader(bytes.NewReader(bytes.Repeat(command, n)), Limits{Command: 1 << 20, Take: func(bytes int) bool {
		taken += bytes
		return taken <= pipelineBuffer
	}})
	pieces := 0
	for got := 0; got < n; pieces++ {
		args, err := r.Next()
		for ; args != nil && err == nil; args, err = r.Ready() {
			got++
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if most := 5 + n*len(command)/(pipelineBuffer-restingBuffer); pieces > most {
		t.Errorf("%d commands came in %d pieces, more than %d", n, pieces, most)
	}
	r.Close()
	if taken != 0 {
		t.Errorf("%d bytes are still taken", taken)
	}

	var pipe bytes.Buffer
	r = NewReader(&pipe, Limits{Command: 1 << 20})
	for i := range 100 {
		fmt.Fprintf(&pipe, "*2\r\n$3\r\nGET\r\n$5\r\nkey%02d\r\n", i)
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(r.buf) > 2*leastBuffer {
		t.Errorf("single commands have a buffer of %d bytes", cap(r.buf))
	}
}

// Where there is no room for a larger buffer, a pipeline is read all the same.
func TestPipelineWithoutRoom(t *testing.T) {
	const n = 1000
	command := []byte("*2\r\n$3\r\nGET\r\n$100\r\n" + strings.Repeat("k", 100) + "\r\n")
	r := NewReader(bytes.NewReader(bytes.Repeat(command, n)), Limits{Command: 1 << 20, Take: func(bytes int) bool { return bytes <= 0 }})
	for i := range n {
		if _, err := r.Next(); err != nil {
			t.Fatal(i, err)
		}
	}
}
