package wasmrt_test

import (
	"fmt"
	"testing"

	"github.com/miwnode/miwnode/coord/worker/wasmrt"
)

// A table grows within the bound of memory and not beyond, whatever the module says
// of its size: the engine would take 34 GB for one.
func TestRun_Tables(t *testing.T) {
	// grow has a body trap unless a table grows by so many entries, or unless it doesn't.
	grow := func(table byte, by string, grows bool) string {
		wrong := "\x46" // i32.eq: it did not
		if !grows {
			wrong = "\x47" // i32.ne
		}
		return "\xd0\x70\x41" + by + "\xfc\x0f" + string([]byte{table}) + "\x41\x7f" + wrong + "\x04\x40\x00\x0b"
	}
	const thousand, eight = "\xe8\x07", "\x80\xc0\x00" // 1000; 8192 = 64 KiB
	half := "\x80\x20"                                 // 4096
	for name, c := range map[string]struct{ tables, code string }{
		"NoMaximum":    {"\x01\x70\x00\x00", grow(0, thousand, true) + grow(0, eight, false) + grow(0, thousand, true)},
		"LargeMaximum": {"\x01\x70\x01\x00\xff\xff\xff\xff\x0f", grow(0, thousand, true) + grow(0, eight, false)},
		"SmallMaximum": {"\x01\x70\x01\x00\x80\x08", grow(0, thousand, true) + grow(0, thousand, false)},
		"Begun":        {"\x01\x70\x00\x80\x20", grow(0, half, true) + grow(0, "\x01", false)},
		"Several":      {"\x02\x70\x00\x00\x70\x00\x00", grow(0, half, true) + grow(1, half, true) + grow(0, "\x01", false) + grow(1, "\x01", false)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRuntime(t, wasmrt.Config{MemoryLimit: 64 << 10})
			section := func(id byte, content string) string { return string([]byte{id, byte(len(content))}) + content }
			code := "\x00" + c.code + "\x0b"
			module := hand(types, function, section(4, c.tables), onePage, exports, section(10, fmt.Sprintf("\x01%c", len(code))+code))
			if err := start(t, r, module(t)).ended(); err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}
