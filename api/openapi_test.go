package api

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/miwnode/miwnode/fsm"
)

type openAPIDoc struct {
	Paths      map[string]map[string]yaml.Node `yaml:"paths"`
	Components struct {
		Parameters map[string]openAPIParameter `yaml:"parameters"`
		Schemas    map[string]openAPISchema    `yaml:"schemas"`
	} `yaml:"components"`
}

type openAPIParameter struct {
	Ref  string `yaml:"$ref"`
	Name string `yaml:"name"`
	In   string `yaml:"in"`
}

type openAPISchema struct {
	Properties map[string]struct {
		Enum []string `yaml:"enum"`
	} `yaml:"properties"`
}

func readOpenAPI(t *testing.T) openAPIDoc {
	t.Helper()
	var doc openAPIDoc
	if err := yaml.Unmarshal(OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// What is served is described, with its parameters, and nothing else is.
func TestOpenAPI_Routes(t *testing.T) {
	doc := readOpenAPI(t)
	described := map[string][]string{}
	for path, item := range doc.Paths {
		for method, node := range item {
			if method == "parameters" {
				continue
			}
			var op struct {
				Parameters []openAPIParameter `yaml:"parameters"`
				Responses  map[string]any     `yaml:"responses"`
			}
			if err := node.Decode(&op); err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			if op.Responses["default"] == nil {
				t.Errorf("%s %s: describes no refusal", method, path)
			}
			query := []string{}
			for _, p := range op.Parameters {
				if name, ok := strings.CutPrefix(p.Ref, "#/components/parameters/"); ok {
					if p, ok = doc.Components.Parameters[name]; !ok {
						t.Errorf("%s %s: no parameter %s", method, path, name)
					}
				}
				if p.In == "query" {
					query = append(query, p.Name)
				}
			}
			slices.Sort(query)
			described[strings.ToUpper(method)+" "+path] = query
		}
	}
	served := map[string][]string{}
	for _, rt := range routes {
		served[rt.method+" "+rt.path] = sortedKeys(rt.parameters())
	}
	for _, call := range slices.Sorted(maps.Keys(served)) {
		if got, want := described[call], served[call]; !slices.Equal(got, want) {
			t.Errorf("%s: described with %v, served with %v", call, got, want)
		}
		delete(described, call)
	}
	for call := range described {
		t.Errorf("%s is described and not served", call)
	}
}

// Every field that travels is described, and every field described travels.
func TestOpenAPI_Fields(t *testing.T) {
	doc := readOpenAPI(t)
	types := map[string]reflect.Type{}
	for _, v := range []any{
		errorAnswer{},
		ErrorBody{},
		Health{},
		Status{},
		Quorum{},
		Members{},
		Member{},
		Instances{},
		Instance{},
		Mark{},
		MarkRequest{},
		Accepted{},
		OpenSessionRequest{},
		Session{},
		KeptAlive{},
		KeptLease{},
		Leases{},
		Lease{},
		Holder{},
		AcquireRequest{},
		Acquired{},
		ReleaseRequest{},
		TransferRequest{},
		RevokeRequest{},
		StepDownRequest{},
		Groups{},
		Group{},
		GroupMember{},
		GroupWorkload{},
		Pin{},
		Failure{},
		Stuck{},
		LastOwner{},
		PutGroupRequest{},
		WorkloadRequest{},
		GroupPut{},
		DeleteGroupRequest{},
		JoinRequest{},
		Joined{},
		LeaveRequest{},
		SteerRequest{},
		Why{},
		Judgement{},
		PlanRequest{},
		Plan{},
		PlannedMove{},
		CreateWorkerRequest{},
		ReloadWorkerRequest{},
		WorkerRequest{},
		WorkerTagsRequest{},
		WorkerChanged{},
		Workers{},
		Worker{},
		WorkerSource{},
		WorkerError{},
		WorkerFailing{},
		Artifact{},
		RecordJobRequest{},
		JobRecorded{},
		Jobs{},
		Job{},
		JobRun{},
		History{},
		HistoryEntry{},
		Event{},
		Resync{},
	} {
		name := reflect.TypeOf(v).Name()
		if name == "errorAnswer" {
			name = "Error"
		}
		types[name] = reflect.TypeOf(v)
	}
	for name, schema := range doc.Components.Schemas {
		typ, ok := types[name]
		if !ok {
			if len(schema.Properties) > 0 {
				t.Errorf("schema %s: no type of that name travels", name)
			}
			continue
		}
		got, want := slices.Sorted(maps.Keys(schema.Properties)), sortedKeys(jsonFields(typ))
		if !slices.Equal(got, want) {
			t.Errorf("schema %s: describes %v, the type has %v", name, got, want)
		}
		delete(types, name)
	}
	for name := range types {
		t.Errorf("type %s travels and is not described", name)
	}
}

// Every code has a status, and is described.
func TestOpenAPI_Codes(t *testing.T) {
	described := readOpenAPI(t).Components.Schemas["ErrorBody"].Properties["code"].Enum
	var known []string
	for code := fsm.CodeInvalidArgument; !strings.HasPrefix(code.String(), "code_"); code++ {
		known = append(known, code.String())
		if _, ok := statuses[code.String()]; !ok {
			t.Errorf("code %v has no HTTP status", code)
		}
	}
	slices.Sort(known)
	if !slices.Equal(described, known) {
		t.Errorf("described %v, known %v", described, known)
	}
}

// The table of codes and statuses of the outside contract, literally.
func TestStatuses(t *testing.T) {
	want := map[string]int{
		"invalid_argument": 400, "unauthenticated": 401, "permission_denied": 403, "not_found": 404, "wait_timeout": 408,
		"lease_held": 409, "stale_token": 409, "draining": 409, "already_exists": 409, "wrong_state": 409,
		"session_expired": 410, "etag_mismatch": 412, "overloaded": 429,
		"no_quorum": 503, "not_ready": 503, "closing": 503, "uncertain": 504, "internal": 500,
	}
	if fmt.Sprint(statuses) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", statuses, want)
	}
}
