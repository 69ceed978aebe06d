package main

import (
	"bufio"
	"net"
	"strings"
	"testing"
)

// scripted is a connection to a server that expects one text and then sends another.
func scripted(t *testing.T, expect, answer string) *beanstalk {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		got := make([]byte, 0, len(expect))
		r := bufio.NewReader(far)
		for len(got) < len(expect) {
			b, err := r.ReadByte()
			if err != nil {
				t.Errorf("the client sent only %q", got)
				return
			}
			got = append(got, b)
		}
		if string(got) != expect {
			t.Errorf("the client sent %q, want %q", got, expect)
		}
		_, _ = far.Write([]byte(answer))
		_ = far.Close()
	}()
	t.Cleanup(func() {
		_ = near.Close()
		<-done
	})
	return newBeanstalk(near)
}

func TestPut(t *testing.T) {
	c := scripted(t, "put 0 3 60 5\r\na\r\nbc\r\nput 0 0 60 0\r\n\r\n", "INSERTED 1\r\nBURIED 2\r\n")
	c.sendPut(3, []byte("a\r\nbc"))
	c.sendPut(0, nil)
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	if err := c.readInserted(); err != nil {
		t.Error(err)
	}
	if err := c.readInserted(); err == nil || !strings.Contains(err.Error(), "BURIED") {
		t.Errorf("the second one was not accepted: %v", err)
	}
	if err := c.readInserted(); err == nil {
		t.Error("the connection has ended: want an error")
	}
}

func TestReserve(t *testing.T) {
	c := scripted(t, "reserve-with-timeout 1\r\nreserve-with-timeout 0\r\ndelete 17\r\n", "RESERVED 17 6\r\nab\r\ncd\r\nTIMED_OUT\r\nDELETED\r\n")
	c.sendReserve(1)
	c.sendReserve(0)
	c.sendDelete("17")
	if err := c.flush(); err != nil {
		t.Fatal(err)
	}
	id, body, ok, err := c.readReserved()
	if id != "17" || string(body) != "ab\r\ncd" || !ok || err != nil {
		t.Errorf("%q, %q, %v, %v", id, body, ok, err)
	}
	if _, _, ok, err := c.readReserved(); ok || err != nil {
		t.Errorf("nothing was ready: %v, %v", ok, err)
	}
	if err := c.readDeleted(); err != nil {
		t.Error(err)
	}
}

func TestNotUnderstood(t *testing.T) {
	for _, answer := range []string{"", "OUT_OF_MEMORY\r\n", "RESERVED 1\r\n", "RESERVED 1 x\r\n", "RESERVED 1 -2\r\n", "RESERVED 1 99999999999\r\n", "RESERVED 1 10\r\nshort\r\n", "NOT_FOUND\r\n"} {
		if _, _, ok, err := scripted(t, "", answer).readReserved(); ok && err == nil {
			t.Errorf("%q is taken for a job", answer)
		}
		if err := scripted(t, "", answer).readDeleted(); err == nil {
			t.Errorf("%q is taken for a deletion", answer)
		}
	}
}

func TestStats(t *testing.T) {
	const text = "---\nname: default\ncurrent-jobs-ready: 7\ncurrent-jobs-delayed: 12\n"
	c := scripted(t, "stats-tube default\r\n", "OK 65\r\n"+text+"\r\n")
	s, err := c.stats("default")
	if err != nil || s["current-jobs-ready"] != 7 || s["current-jobs-delayed"] != 12 {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := scripted(t, "stats-tube x\r\n", "NOT_FOUND\r\n").stats("x"); err == nil {
		t.Error("want an error")
	}
}
