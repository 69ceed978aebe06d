package member

import (
	"testing"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/identity"
)

// The entry of a node stays as it is: nodes of other versions read it.
func TestEntryStays(t *testing.T) {
	got := (&Entry{
		Incarnation: "00ff", Generation: 2, Released: true, Counts: []int{8, 16},
		Process: identity.Process{Host: "h", Machine: "m", Boot: "b", Space: "s", PID: 7, Started: 9}, Number: 5,
	}).Encode()
	want := `{"incarnation":"00ff","generation":2,"released":true,"counts":[8,16],"host":"h","machine":"m","boot":"b","space":"s","pid":7,"started":9,"number":5}`
	if got != want {
		t.Errorf("the entry has changed:\n got %s\nwant %s", got, want)
	}
}
