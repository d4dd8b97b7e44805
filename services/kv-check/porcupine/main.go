// Checks histories of a key-value store for linearizability, with porcupine.
//
// Each line of the standard input is a history in JSON, each line of the output the verdict on it:
// {"verdict":"ok"}, "illegal" or "unknown" when the time is up. The first argument is that time.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const keysMax = 8

type history struct {
	// Whether an operation concerns several keys: then all of them are one object.
	HasScans   bool        `json:"has_scans"`
	Operations []operation `json:"operations"`
}

type operation struct {
	Client     int        `json:"client"`
	Call       int64      `json:"call"`
	End        *int64     `json:"end"`
	Invocation invocation `json:"invocation"`
	Response   *response  `json:"response"`
}

type invocation struct {
	Kind        string          `json:"kind"`
	Key         int             `json:"key"`
	Tag         string          `json:"tag"`
	Expected    json.RawMessage `json:"expected"`
	From        int             `json:"from"`
	Until       int             `json:"until"`
	Max         int             `json:"max"`
	expectation expectation
}

type expectation struct {
	Absent   bool
	Revision *uint64 `json:"revision"`
	Tag      *string `json:"tag"`
}

type response struct {
	Found   *[]found `json:"found"`
	Changed *struct {
		Index    uint64 `json:"index"`
		WasThere bool   `json:"was_there"`
	} `json:"changed"`
	Mismatch *struct {
		Index    uint64 `json:"index"`
		Revision uint64 `json:"revision"`
	} `json:"mismatch"`
}

type found struct {
	Key      int    `json:"key"`
	Tag      string `json:"tag"`
	Revision uint64 `json:"revision"`
}

// A key: the zero value is absent. The revision is 0 while nobody knows it, after a write without an answer.
type cell struct {
	exists   bool
	tag      string
	revision uint64
}

// All keys, and the last index in a response to a write. Comparable, as the checker wants it.
type state struct {
	cells [keysMax]cell
	last  uint64
}

func main() {
	limit := 20 * time.Second
	if len(os.Args) > 1 {
		parsed, err := time.ParseDuration(os.Args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, "usage: petrel-kv-linearizable [TIME], such as 20s:", err)
			os.Exit(2)
		}
		limit = parsed
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		verdict, err := check(line, limit)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("{\"verdict\":%q}\n", verdict)
	}
}

func check(line []byte, limit time.Duration) (string, error) {
	var all history
	if err := json.Unmarshal(line, &all); err != nil {
		return "", err
	}
	last := int64(1)
	for _, one := range all.Operations {
		last = max(last, one.Call+1)
		if one.End != nil {
			last = max(last, *one.End+1)
		}
	}
	operations := make([]porcupine.Operation, 0, len(all.Operations))
	for _, one := range all.Operations {
		invoked := one.Invocation
		if err := invoked.parse(); err != nil {
			return "", err
		}
		isRead := invoked.Kind == "get" || invoked.Kind == "scan"
		if one.Response == nil && isRead {
			continue
		}
		// What has no end may take effect at any time after its call, or never: at the very end is as good.
		end := last
		if one.End != nil {
			end = *one.End
		}
		operations = append(operations, porcupine.Operation{
			ClientId: one.Client, Input: invoked, Call: one.Call, Output: one.Response, Return: end,
		})
	}
	switch porcupine.CheckOperationsTimeout(model(!all.HasScans), operations, limit) {
	case porcupine.Ok:
		return "ok", nil
	case porcupine.Illegal:
		return "illegal", nil
	}
	return "unknown", nil
}

func (a *invocation) parse() error {
	if a.Key < 0 || a.Key >= keysMax || a.From < 0 || a.Until > keysMax {
		return fmt.Errorf("keys are 0 to %d", keysMax-1)
	}
	if len(a.Expected) == 0 {
		return nil
	}
	if string(a.Expected) == `"absent"` {
		a.expectation.Absent = true
		return nil
	}
	return json.Unmarshal(a.Expected, &a.expectation)
}

func model(byKey bool) porcupine.Model {
	made := porcupine.Model{
		Init: func() interface{} { return state{} },
		Step: func(before, input, output interface{}) (bool, interface{}) {
			return step(before.(state), input.(invocation), output.(*response))
		},
	}
	if byKey {
		made.Partition = partition
	}
	return made
}

func partition(all []porcupine.Operation) [][]porcupine.Operation {
	parts := make([][]porcupine.Operation, keysMax)
	for _, one := range all {
		key := one.Input.(invocation).Key
		parts[key] = append(parts[key], one)
	}
	used := parts[:0]
	for _, part := range parts {
		if len(part) > 0 {
			used = append(used, part)
		}
	}
	return used
}

func step(at state, invoked invocation, answer *response) (bool, interface{}) {
	switch invoked.Kind {
	case "get":
		return read(at, invoked.Key, invoked.Key+1, 1, *answer.Found)
	case "scan":
		return read(at, invoked.From, invoked.Until, invoked.Max, *answer.Found)
	}
	if answer == nil {
		return true, openWrite(at, invoked)
	}
	return write(at, invoked, answer)
}

// The keys of a range are as they were read, up to so many.
func read(at state, from, until, most int, read []found) (bool, interface{}) {
	for key := from; key < until && most > 0; key++ {
		cell := &at.cells[key]
		if !cell.exists {
			continue
		}
		if len(read) == 0 || read[0].Key != key || read[0].Tag != cell.tag {
			return false, at
		}
		if cell.revision != 0 && cell.revision != read[0].Revision {
			return false, at
		}
		cell.revision = read[0].Revision
		read = read[1:]
		most--
	}
	return len(read) == 0, at
}

// A write without an answer: whether it took effect depends on what it found.
func openWrite(at state, invoked invocation) state {
	cell := &at.cells[invoked.Key]
	if matches(*cell, invoked) {
		change(cell, invoked, 0)
	}
	return at
}

func write(at state, invoked invocation, answer *response) (bool, interface{}) {
	cell := &at.cells[invoked.Key]
	if answer.Mismatch != nil {
		missed := *answer.Mismatch
		if missed.Index <= at.last || matches(*cell, invoked) || cell.exists != (missed.Revision != 0) {
			return false, at
		}
		if cell.revision != 0 && cell.revision != missed.Revision {
			return false, at
		}
		cell.revision, at.last = missed.Revision, missed.Index
		return true, at
	}
	changed := *answer.Changed
	if changed.Index <= at.last || !matches(*cell, invoked) || cell.exists != changed.WasThere {
		return false, at
	}
	change(cell, invoked, changed.Index)
	at.last = changed.Index
	return true, at
}

// Whoever expects a revision has read it, so that by then it is known here.
func matches(at cell, invoked invocation) bool {
	switch {
	case invoked.Kind != "cas" && invoked.Kind != "cas_delete":
		return true
	case invoked.expectation.Absent:
		return !at.exists
	case invoked.expectation.Revision != nil:
		return at.exists && at.revision == *invoked.expectation.Revision
	default:
		return at.exists && at.tag == *invoked.expectation.Tag
	}
}

func change(at *cell, invoked invocation, index uint64) {
	if invoked.Kind == "delete" || invoked.Kind == "cas_delete" {
		*at = cell{}
		return
	}
	*at = cell{exists: true, tag: invoked.Tag, revision: index}
}
