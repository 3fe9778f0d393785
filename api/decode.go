package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// maxBody bounds a request's body.
const maxBody = 1 << 20

// bodyTimeout bounds the reading of a request's body: a sender that dribbles costs no goroutine for longer.
const bodyTimeout = 10 * time.Second

// Duration travels as a Go string such as "1m30s".
type Duration time.Duration

// MarshalJSON writes the duration as a Go string.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads a Go duration string and nothing else.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return errors.New(`must be a duration string such as "10s"`)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf(`must be a duration string such as "10s", not %q`, s)
	}
	*d = Duration(v)
	return nil
}

func (d Duration) String() string { return time.Duration(d).String() }

// readBody reads the whole body, bounded in size and time.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > maxBody {
		return nil, invalid("the body has %d bytes, more than the %d that are taken", r.ContentLength, maxBody)
	}
	rc := http.NewResponseController(w)
	if rc.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil {
		defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, invalid("the body has more than the %d bytes that are taken", maxBody)
	}
	if err != nil {
		return nil, invalid("the body could not be read: %v", err)
	}
	return b, nil
}

// decodeJSON fills the struct that into points to from body. Names are matched
// exactly; an unknown or repeated name, a wrong type, trailing data and text
// that is not UTF-8 are refused with the name of what is wrong. An empty body
// is an empty object.
func decodeJSON(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if !utf8.Valid(body) {
		return invalid("the body is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return invalid("the body is not JSON: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("the body has data after its JSON object")
	}
	return decodeStruct(raw, reflect.ValueOf(into).Elem(), "")
}

func decodeStruct(raw json.RawMessage, v reflect.Value, path string) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return invalid("%s must be a JSON object", cmpOr(path, "the body"))
	}
	fields := jsonFields(v.Type())
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return invalid("the body is not JSON: %v", err)
		}
		name := t.(string) // the keys of an object are strings
		full := name
		if path != "" {
			full = path + "." + name
		}
		i, known := fields[name]
		if !known {
			return invalid("unknown field %q; known here: %s", full, strings.Join(sortedKeys(fields), ", "))
		}
		if seen[name] {
			return invalid("field %q is given twice", full)
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return invalid("%s: %v", full, err)
		}
		if err := decodeValue(value, v.Field(i), full); err != nil {
			return err
		}
	}
	return nil
}

func decodeValue(raw json.RawMessage, v reflect.Value, path string) error {
	if string(raw) == "null" {
		return nil
	}
	if v.Kind() == reflect.Struct && !v.Addr().Type().Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return decodeStruct(raw, v, path)
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			return invalid("%s must be %s, not %s", path, article(v.Type()), wrong.Value)
		}
		return invalid("%s %v", path, err)
	}
	if strings.ContainsRune(string(raw), '\\') && brokenEscape(raw) {
		return invalid("%s has half of a surrogate pair, which is no text", path)
	}
	return nil
}

// brokenEscape tells whether decoding made a replacement character that nobody wrote.
func brokenEscape(raw json.RawMessage) bool {
	var any any
	if json.Unmarshal(raw, &any) != nil {
		return false
	}
	made := strings.Count(fmt.Sprint(any), "\ufffd")
	written := strings.Count(string(raw), "\ufffd") + strings.Count(strings.ToLower(string(raw)), `\ufffd`)
	return made > written
}

func jsonFields(t reflect.Type) map[string]int {
	fields := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = i
		}
	}
	return fields
}

func article(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Map:
		return "an object of strings"
	case reflect.Slice:
		return "a list"
	default:
		return "a whole number"
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func cmpOr(s, or string) string {
	if s == "" {
		return or
	}
	return s
}
