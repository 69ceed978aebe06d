package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// beanstalk is one connection to beanstalkd, see its doc/protocol.txt. The caller may collect any
// number of commands and send them together; the answers come in the same order.
type beanstalk struct {
	conn net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
}

func dialBeanstalk(addr string) (*beanstalk, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return newBeanstalk(conn), nil
}

func newBeanstalk(conn net.Conn) *beanstalk {
	return &beanstalk{conn, bufio.NewReaderSize(conn, 64<<10), bufio.NewWriterSize(conn, 64<<10)}
}

// sendPut asks for a job that is delayed by whole seconds.
func (c *beanstalk) sendPut(seconds int, body []byte) {
	const priority, secondsToRun = 0, 60
	fmt.Fprintf(c.w, "put %d %d %d %d\r\n", priority, seconds, secondsToRun, len(body))
	_, _ = c.w.Write(body) // an error stays in the writer until Flush
	_, _ = c.w.WriteString("\r\n")
}

func (c *beanstalk) sendReserve(seconds int) {
	fmt.Fprintf(c.w, "reserve-with-timeout %d\r\n", seconds)
}

func (c *beanstalk) sendDelete(id string) { fmt.Fprintf(c.w, "delete %s\r\n", id) }

// flush sends the collected commands.
func (c *beanstalk) flush() error { return c.w.Flush() }

// readInserted reads the answer to a put.
func (c *beanstalk) readInserted() error {
	line, err := c.line()
	if err == nil && !strings.HasPrefix(line, "INSERTED ") {
		err = fmt.Errorf("put was answered %s", line)
	}
	return err
}

// readReserved reads the answer to a reserve: ok is false if there was no job.
func (c *beanstalk) readReserved() (id string, body []byte, ok bool, err error) {
	line, err := c.line()
	if err != nil || line == "TIMED_OUT" || line == "DEADLINE_SOON" {
		return "", nil, false, err
	}
	words := strings.Fields(line)
	if len(words) != 3 || words[0] != "RESERVED" {
		return "", nil, false, fmt.Errorf("reserve was answered %s", line)
	}
	body, err = c.body(words[2])
	return words[1], body, true, err
}

func (c *beanstalk) readDeleted() error {
	line, err := c.line()
	if err == nil && line != "DELETED" {
		err = fmt.Errorf("delete was answered %s", line)
	}
	return err
}

// stats asks for the figures of a tube.
func (c *beanstalk) stats(tube string) (map[string]int, error) {
	fmt.Fprintf(c.w, "stats-tube %s\r\n", tube)
	if err := c.flush(); err != nil {
		return nil, err
	}
	line, err := c.line()
	if err != nil {
		return nil, err
	}
	length, ok := strings.CutPrefix(line, "OK ")
	if !ok {
		return nil, fmt.Errorf("stats-tube was answered %s", line)
	}
	text, err := c.body(length)
	if err != nil {
		return nil, err
	}
	all := map[string]int{}
	for line := range bytes.Lines(text) { // "name: number", and some that are no number
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), ": ")
		if n, err := strconv.Atoi(value); err == nil {
			all[name] = n
		}
	}
	return all, nil
}

func (c *beanstalk) line() (string, error) {
	line, err := c.r.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

// body reads so many bytes and the end of the line after them.
func (c *beanstalk) body(length string) ([]byte, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > 1<<20 {
		return nil, fmt.Errorf("a body of %s bytes", length)
	}
	text := make([]byte, n+2)
	_, err = io.ReadFull(c.r, text)
	return text[:n], err
}
