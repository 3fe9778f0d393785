package wasmrt

import (
	"errors"
	"fmt"
)

// The engine makes room for as many things as a module says that it has before it
// reads the first of them, and the process ends where there is no such room. So the
// shape of a module is looked at before the engine sees it: each thing that it counts
// must be there. Code is not looked into: it counts nothing ahead.

// Limits of modules. All but maxAllLocals and maxThings are those that browsers have
// agreed on (https://webassembly.github.io/spec/js-api/#limits).
const (
	maxLocals = 50_000    // of a function
	maxTypes  = 1_000     // that a function takes, or returns
	maxBody   = 7_654_321 // bytes of a function
	// maxThings is how many types, imports, functions, tables, globals, exports,
	// segments, elements and names there may be, together. Browsers allow as many
	// of most of these each.
	maxThings = 1_000_000
)

// shape is what a module has that takes memory when it runs.
type shape struct {
	tables []table // its own, in their order
}

// shapeOf looks whether everything that a module counts is there.
func shapeOf(module []byte) (shape, error) {
	s := scan{rest: module[min(len(module), len(core)):], spare: maxThings, locals: max(maxLocals, uint64(len(module)))}
	for len(s.rest) > 0 && s.err == nil {
		id := s.byte()
		section := s.part(s.u32())
		section.section(id)
		s.rejoin(section)
	}
	return s.shape, s.err
}

// scan reads a module, or a part of one. After an error it reads nothing more.
type scan struct {
	rest   []byte
	err    error
	spare  uint64 // how many things more there may be
	locals uint64 // how many locals more there may be
	shape  shape
}

var errCutShort = errors.New("it is cut short")

func (s *scan) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
	s.rest = nil
}

func (s *scan) bytes(n uint64) []byte {
	if n > uint64(len(s.rest)) {
		s.fail("%w", errCutShort)
		return nil
	}
	b := s.rest[:n]
	s.rest = s.rest[n:]
	return b
}

func (s *scan) byte() byte {
	if b := s.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

// number reads one in LEB128 of at most that many bytes. It returns the value of
// one that has no sign.
func (s *scan) number(most int) (v uint64) {
	for i := range most {
		b := s.byte()
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return v
		}
	}
	s.fail("it has a number that has no end")
	return 0
}

func (s *scan) u32() uint64 {
	v := s.number(5)
	if v > 1<<32-1 {
		s.fail("it has a number that is too large")
		return 0
	}
	return v
}

// part divides off the next bytes; rejoin takes their scan's findings back.
func (s *scan) part(n uint64) *scan {
	p := *s
	p.rest = s.bytes(n)
	p.err = s.err
	return &p
}

func (s *scan) rejoin(p *scan) {
	if len(p.rest) > 0 {
		p.fail("it has %d bytes more than what they are for", len(p.rest))
	}
	s.spare, s.locals, s.shape = p.spare, p.locals, p.shape
	if p.err != nil {
		s.fail("%w", p.err)
	}
}

// each reads a list: how many there are, then each.
func (s *scan) each(what string, read func()) {
	n := s.u32()
	if n > uint64(len(s.rest)) {
		s.fail("it is to have %d %s in %d bytes", n, what, len(s.rest))
		return
	}
	if n > s.spare {
		s.fail("it has more than %d types, functions, elements and the like", maxThings)
		return
	}
	s.spare -= n
	for ; n > 0 && s.err == nil; n-- {
		read()
	}
}

// Numbers of sections.
const (
	secCustom    = 0
	secType      = 1
	secImport    = 2
	secFunction  = 3
	secTable     = 4
	secMemory    = 5
	secGlobal    = 6
	secExport    = 7
	secStart     = 8
	secElement   = 9
	secCode      = 10
	secData      = 11
	secDataCount = 12
)

func (s *scan) section(id byte) {
	switch id {
	case secCustom:
		if string(s.text()) == "name" {
			s.names()
		}
		s.rest = nil
	case secType:
		s.each("types", s.function)
	case secImport:
		s.each("imports", s.imported)
	case secFunction:
		s.each("functions", func() { s.u32() })
	case secTable:
		s.each("tables", func() { s.shape.tables = append(s.shape.tables, s.table()) })
	case secMemory:
		s.each("memories", func() { s.limits() })
	case secGlobal:
		s.each("globals", func() { s.global(); s.expression() })
	case secExport:
		s.each("exports", func() { s.text(); s.byte(); s.u32() })
	case secStart, secDataCount:
		s.u32()
	case secElement:
		s.each("segments of elements", s.elements)
	case secCode:
		s.each("bodies", s.body)
	case secData:
		s.each("segments of data", s.data)
	default:
		s.fail("it has a section of kind %d, which is unknown", id)
	}
}

// text reads a name, or other bytes after how many there are.
func (s *scan) text() []byte { return s.bytes(s.u32()) }

// value reads the type of a value.
func (s *scan) value() (t byte) {
	switch t = s.byte(); t {
	case 0x7f, 0x7e, 0x7d, 0x7c, 0x7b, 0x70, 0x6f: // i32, i64, f32, f64, v128, funcref, externref
	default:
		s.fail("it has values of type %#x, which is unknown", t)
	}
	return t
}

// function reads the type of a function.
func (s *scan) function() {
	if form := s.byte(); form != 0x60 {
		s.fail("it has a type of form %#x, which is unknown", form)
	}
	for range 2 {
		n := s.u32()
		if n > maxTypes {
			s.fail("it has a function that takes or returns %d values, at most %d are allowed", n, maxTypes)
		}
		for ; n > 0 && s.err == nil; n-- {
			s.value()
		}
	}
}

func (s *scan) imported() {
	s.text()
	s.text()
	switch kind := s.byte(); kind {
	case 0:
		s.u32()
	case 1:
		s.table()
	case 2:
		s.limits()
	case 3:
		s.global()
	default:
		s.fail("it imports something of kind %d, which is unknown", kind)
	}
}

// limits reads a least and perhaps a largest size.
func (s *scan) limits() (flags byte, least, most uint64) {
	if flags = s.byte(); flags > 3 {
		s.fail("it has limits of kind %d, which is unknown", flags)
	}
	least, most = s.u32(), noMost
	if flags&1 != 0 {
		most = s.u32()
	}
	return flags, least, most
}

func (s *scan) table() (t table) {
	t.kind = s.value()
	t.flags, t.least, t.most = s.limits()
	return t
}

func (s *scan) global() {
	s.value()
	s.byte()
}

// expression reads what computes a value before the module runs.
func (s *scan) expression() {
	for s.err == nil {
		switch op := s.byte(); op {
		case 0x0b: // end
			return
		case 0x41, 0x23, 0xd2: // i32.const, global.get, ref.func
			s.number(5)
		case 0x42: // i64.const
			s.number(10)
		case 0x43: // f32.const
			s.bytes(4)
		case 0x44: // f64.const
			s.bytes(8)
		case 0xd0: // ref.null
			s.value()
		case 0xfd: // v128.const
			if s.byte() != 0x0c {
				s.fail("it computes what is no constant")
			}
			s.bytes(16)
		default:
			s.fail("it computes a constant by instruction %#x, which is unknown", op)
		}
	}
}

// elements reads a segment of elements, of which there are eight kinds.
func (s *scan) elements() {
	const passive, indexed, expressions = 1, 2, 4
	kind := s.u32()
	if kind > 7 {
		s.fail("it has elements of kind %d, which is unknown", kind)
	}
	if kind&passive == 0 {
		if kind&indexed != 0 {
			s.u32()
		}
		s.expression()
	}
	switch {
	case kind&(passive|indexed) == 0:
	case kind&expressions != 0:
		s.value()
	default:
		s.byte()
	}
	if kind&expressions != 0 {
		s.each("elements", s.expression)
	} else {
		s.each("elements", func() { s.u32() })
	}
}

// body reads what a function has before its code.
func (s *scan) body() {
	size := s.u32()
	if size > maxBody {
		s.fail("it has a function of %d bytes, at most %d are allowed", size, maxBody)
	}
	f := s.part(size)
	own := uint64(0)
	for n := f.u32(); n > 0 && f.err == nil; n-- {
		own += f.u32()
		f.value()
		if own > maxLocals || own > f.locals {
			f.fail("it has a function of %d locals and more, at most %d are allowed, and as many as the module has bytes in all", own, maxLocals)
		}
	}
	f.locals -= min(own, f.locals)
	f.rest = nil
	s.rejoin(f)
}

func (s *scan) data() {
	switch kind := s.u32(); kind {
	case 0:
		s.expression()
	case 1:
	case 2:
		s.u32()
		s.expression()
	default:
		s.fail("it has data of kind %d, which is unknown", kind)
	}
	s.text()
}

// names reads what things are called.
func (s *scan) names() {
	for len(s.rest) > 0 && s.err == nil {
		kind := s.byte()
		p := s.part(s.u32())
		switch kind {
		case 0: // of the module
			p.text()
		case 1: // of functions
			p.named()
		case 2: // of locals, by function
			p.each("functions", func() { p.u32(); p.named() })
		default:
			p.rest = nil
		}
		s.rejoin(p)
	}
}

func (s *scan) named() { s.each("names", func() { s.u32(); s.text() }) }
