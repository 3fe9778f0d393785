package wasmrt

import (
	"context"
	"encoding/hex"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
)

// Parts of modules: a type, a function of it, a memory, exports and a body.
const (
	ofTypes  = "\x01\x04\x01\x60\x00\x00"
	ofFuncs  = "\x03\x02\x01\x00"
	ofMemory = "\x05\x03\x01\x00\x01"
	ofExport = "\x07\x13\x02\x06memory\x02\x00\x06_start\x00\x00"
	ofBody   = "\x0a\x04\x01\x02\x00\x0b"
	most     = "\xff\xff\xff\xff\x0f" // 2³²-1
)

// sec is a section of less than 128 bytes.
func sec(id byte, content string) string {
	return string([]byte{id, byte(len(content))}) + content
}

func whole(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{"hand": []byte(core + ofTypes + ofFuncs + ofMemory + ofExport + ofBody)}
	for _, path := range []string{"testdata/behave.wasm", "../../../examples/worker/ticker.wasm"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = b
	}
	return all
}

// everything has one of each thing that a module may have.
var everything = core + ofTypes + sec(2, "\x02\x01a\x01f\x00\x00\x01a\x01g\x03\x7f\x00") + ofFuncs + sec(4, "\x01\x70\x01\x02\x04") + ofMemory +
	sec(6, "\x06\x7f\x00\x41\x7f\x0b\x7e\x00\x42\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f\x0b\x7d\x00\x43\x00\x00\x00\x00\x0b\x7c\x00\x44\x00\x00\x00\x00\x00\x00\x00\x00\x0b"+
		"\x70\x00\xd0\x70\x0b\x7b\x00\xfd\x0c0123456789abcdef\x0b") +
	ofExport + sec(9, "\x08\x00\x41\x00\x0b\x01\x00\x01\x00\x01\x00\x02\x00\x41\x00\x0b\x00\x01\x00\x03\x00\x01\x00"+
	"\x04\x41\x00\x0b\x01\xd2\x00\x0b\x05\x70\x01\xd0\x70\x0b\x06\x00\x41\x00\x0b\x70\x01\xd0\x70\x0b\x07\x70\x01\xd2\x00\x0b") +
	sec(12, "\x02") + sec(10, "\x01\x06\x02\x02\x7f\x01\x7e\x0b") + sec(11, "\x02\x00\x41\x00\x0b\x02hi\x01\x02yo") +
	sec(0, "\x04name\x00\x02\x01m\x01\x04\x01\x00\x01f\x02\x07\x01\x01\x01\x00\x02xy\x09\x01?") + sec(0, "\x05other????")

// TestShapeOf: modules that are whole.
func TestShapeOf(t *testing.T) {
	all := whole(t)
	all["everything"] = []byte(everything)
	for name, b := range all {
		if _, err := shapeOf(b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		compiled, err := engine(t).CompileModule(t.Context(), b)
		if err != nil {
			t.Errorf("%s: the engine says: %v", name, err)
			continue
		}
		_ = compiled.Close(t.Context())
	}
	if got, _ := shapeOf([]byte(everything)); got.entries() != 2 {
		t.Errorf("tables begin with %d entries, want 2", got.entries())
	}
}

func engine(t testing.TB) wazero.Runtime {
	r := wazero.NewRuntimeWithConfig(context.Background(), wazero.NewRuntimeConfigInterpreter())
	t.Cleanup(func() { _ = r.Close(context.Background()) })
	return r
}

// TestShapeOf_Refused: the engine would make room for what isn't there, or for much
// more than a module of that size has any use for.
func TestShapeOf_Refused(t *testing.T) {
	locals, err := hex.DecodeString("0061736d0100000001040160000003020100070a01065f737461727400000a0a010801ffffffff0f7f0b")
	if err != nil {
		t.Fatal(err)
	}
	many := func(id byte, n string, each string, times int) string {
		content := n + strings.Repeat(each, times)
		size := len(content)
		return string([]byte{id, byte(size) | 0x80, byte(size>>7) | 0x80, byte(size>>14) | 0x80, byte(size>>21) & 0x7f}) + content
	}
	for name, c := range map[string]struct{ module, says string }{
		"Locals":        {string(locals), "function of 4294967295 locals"},
		"LocalsOfAll":   {core + many(10, "\xe8\x07", "\x06\x01\xd0\x86\x03\x7f\x0b", 1000), "as many as the module has bytes in all"},
		"LocalsOfParts": {core + sec(10, "\x01\x0a\x02\xff\xff\x02\x7f\xff\xff\x02\x7e\x0b"), "function of 98302 locals"},
		"Types":         {core + sec(1, most), "4294967295 types in 0 bytes"},
		"Params":        {core + sec(1, "\x01\x60"+most), "takes or returns 4294967295 values"},
		"Results":       {core + sec(1, "\x01\x60\x00"+most), "takes or returns 4294967295 values"},
		"Imports":       {core + sec(2, most), "4294967295 imports"},
		"Functions":     {core + sec(3, most), "4294967295 functions"},
		"Tables":        {core + sec(4, most), "4294967295 tables"},
		"Globals":       {core + sec(6, most), "4294967295 globals"},
		"Exports":       {core + sec(7, most), "4294967295 exports"},
		"Segments":      {core + sec(9, most), "4294967295 segments of elements"},
		"Elements":      {core + sec(9, "\x01\x00\x41\x00\x0b"+most), "4294967295 elements"},
		"Expressions":   {core + sec(9, "\x01\x05\x70"+most), "4294967295 elements"},
		"Bodies":        {core + sec(10, most), "4294967295 bodies"},
		"Body":          {core + sec(10, "\x01"+most), "function of 4294967295 bytes"},
		"Data":          {core + sec(11, most), "4294967295 segments of data"},
		"DataBytes":     {core + sec(11, "\x01\x01"+most), "cut short"},
		"Section":       {core + "\x01" + most, "cut short"},
		"Name":          {core + sec(2, "\x01"+most), "cut short"},
		"NameOfSection": {core + sec(0, most), "cut short"},
		"NamesOf":       {core + sec(0, "\x04name\x01\x05"+most), "4294967295 names"},
		"NamesOfLocals": {core + sec(0, "\x04name\x02\x05"+most), "4294967295 functions"},
		"LocalNames":    {core + sec(0, "\x04name\x02\x07\x01\x00"+most), "4294967295 names"},
		// Where a part of the names is longer or shorter than it says, the engine reads on behind it.
		"NamesLonger":  {core + sec(0, "\x04name\x01\x03\x01\x00\x01f"), "cut short"},
		"NamesShorter": {core + sec(0, "\x04name\x01\x08\x01\x00\x01f\x01\x02\x03\x04"), "4 bytes more"},
		"Many":         {core + many(3, "\xc1\x84\x3d", "\x00", 1_000_001), "more than 1000000"},
		"Left":         {core + sec(3, "\x01\x00\x00"), "1 bytes more"},
		"NoEnd":        {core + "\x01\x80\x80\x80\x80\x80\x00", "no end"},
		"TooLarge":     {core + "\x01\xff\xff\xff\xff\x1f", "too large"},
		"Kind":         {core + sec(13, "\x00"), "kind 13"},
		"Expression":   {core + sec(6, "\x01\x7f\x00\x10\x00\x0b"), "instruction 0x10"},
	} {
		if _, err := shapeOf([]byte(c.module)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, c.says)
		}
	}
	for n := range everything { // at the end of a section it is whole
		if _, err := shapeOf([]byte(everything[:n])); err != nil && !strings.Contains(err.Error(), "cut short") && !strings.Contains(err.Error(), " bytes") {
			t.Errorf("cut short after %d bytes: %v", n, err)
		}
	}
}

// FuzzShapeOf: what is let through, the engine reads, and takes no more memory for than
// is in proportion.
func FuzzShapeOf(f *testing.F) {
	f.Add([]byte(core + ofTypes + ofFuncs + ofMemory + ofExport + ofBody))
	f.Add([]byte(everything))
	f.Add([]byte(core + sec(10, "\x01\x08\x01\xff\xff\x02\x7f\x0b")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4<<10 || beginning(b) != nil {
			return
		}
		has, err := shapeOf(b)
		if err != nil || has.entries() > 1<<20 {
			return
		}
		r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
		defer r.Close(t.Context())
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		compiled, err := r.CompileModule(t.Context(), b)
		runtime.ReadMemStats(&after)
		if err == nil {
			defer compiled.Close(t.Context())
		}
		// With sizes for its tables it is as good as without.
		bounded, fault := r.CompileModule(t.Context(), has.bounded(b, 1<<20))
		if fault == nil {
			defer bounded.Close(t.Context())
		}
		if (err == nil) != (fault == nil) {
			t.Errorf("the engine says %v, and of the module with bounds %v", err, fault)
		}
		if took, most := after.TotalAlloc-before.TotalAlloc, uint64(16<<20+1000*len(b)); took > most {
			t.Errorf("the engine took %d bytes for a module of %d, want at most %d", took, len(b), most)
		}
	})
}
