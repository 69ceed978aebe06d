package measure

import (
	"os"
	"os/exec"
	"testing"
)

func TestProcessorTime(t *testing.T) {
	before, err := ProcessorTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for i := range 10_000_000 {
		sum += i * i
	}
	after, err := ProcessorTime(os.Getpid())
	if err != nil || after <= before || sum == 0 {
		t.Errorf("%v after %v, %v", after, before, err)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := ProcessorTime(ended.Process.Pid); err == nil {
		t.Error("a process that has ended has a clock")
	}
}
