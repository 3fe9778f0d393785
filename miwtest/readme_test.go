package miwtest_test

import (
	"os"
	"strings"
	"testing"
)

// Ensures that the test in the README is one that is run.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../examples/cron/cron_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## Test your own workers\n")
	_, block, _ := strings.Cut(section, "\n```go\n")
	block, _, ok := strings.Cut(block, "\n```\n")
	if !ok || !strings.Contains(string(example), block) {
		t.Errorf("the README says this and examples/cron/cron_test.go does not:\n%s", block)
	}
}
