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

const (
	// maxBody bounds a request's body, where its route allows no more.
	maxBody = 1 << 20
	// maxGroupBody bounds the body of a group with all its workloads.
	maxGroupBody = 8 << 20
)

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

// Names is a list of names, for which one name may stand.
type Names []string

// UnmarshalJSON reads a text or a list of texts.
func (n *Names) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*n = Names{one}
		return nil
	}
	var all []string
	if json.Unmarshal(b, &all) != nil {
		return errors.New("must be a string or a list of strings")
	}
	*n = all
	return nil
}

// readBody reads the whole body, bounded in size and time.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, invalid("the body has %d bytes, more than the %d that are taken", r.ContentLength, limit)
	}
	rc := http.NewResponseController(w)
	if rc.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil {
		defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, invalid("the body has more than the %d bytes that are taken", limit)
	}
	if err != nil {
		return nil, invalid("the body could not be read: %v", err)
	}
	w.Header().Del("Connection")
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
	if !v.Addr().Type().Implements(reflect.TypeFor[json.Unmarshaler]()) {
		switch {
		case v.Kind() == reflect.Struct:
			return decodeStruct(raw, v, path)
		case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
			return decodeList(raw, v, path)
		}
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

// decodeList fills a slice of structs, each as strictly as the body itself.
func decodeList(raw json.RawMessage, v reflect.Value, path string) error {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return invalid("%s must be a list", path)
	}
	v.Set(reflect.MakeSlice(v.Type(), len(elements), len(elements)))
	for i, e := range elements {
		if err := decodeStruct(e, v.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
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
	case reflect.Pointer:
		return article(t.Elem())
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Map:
		return "an object of strings"
	case reflect.Slice:
		return "a list of strings"
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
