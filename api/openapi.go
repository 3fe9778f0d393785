package api

import _ "embed" // of the description below

//go:embed openapi.yaml
var openAPI []byte

// OpenAPI is the description of the API (OpenAPI 3.1, YAML): every call,
// parameter and field that exists.
func OpenAPI() []byte { return openAPI }
