// The rules of the house, held by a test so that nobody has to remember them.
package miwnode_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/miwnode/miwnode"

type goPackage struct {
	ImportPath  string
	Name        string
	Dir         string
	Doc         string
	Imports     []string
	Deps        []string
	GoFiles     []string
	TestGoFiles []string
}

func listPackages(t *testing.T, args ...string) []goPackage {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Dir,Doc,Imports,Deps,GoFiles,TestGoFiles"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p goPackage
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// forbidden imports: package (below the module) → import → what to do instead.
var forbidden = map[string]map[string]string{
	"fsm": {
		"net": "the state is pure", "os": "the state is pure", "math/rand": "the state is deterministic", "math/rand/v2": "the state is deterministic",
		"log/slog": "return outcomes, the node logs", module + "/node": "node imports fsm", module + "/transport": "the state knows no wire",
	},
	"fsm/fsmpb":             {module + "/fsm": "fsm imports its wire format"},
	"transport":             {module + "/fsm": "transport moves bytes", module + "/node": "node imports transport", module + "/coord": "transport moves bytes"},
	"transport/memnet":      {module + "/fsm": "memnet moves bytes", module + "/node": "memnet moves bytes"},
	"node":                  {module + "/coord": "coord sits on the node through coord.Cluster", module + "/api": "api imports node", "testing": "tests belong to nodetest"},
	"coord":                 {module + "/node": "declare what you need in coord.Cluster", module + "/transport": "declare it in coord.Cluster", "github.com/hashicorp/raft": "declare it in coord.Cluster"},
	"api":                   {"github.com/hashicorp/raft": "ask the node", "github.com/hashicorp/memberlist": "ask the node"},
	"cmd/miwnode":           {"github.com/hashicorp/raft": "ask the node", "github.com/hashicorp/memberlist": "ask the node"},
	"artifact":              {module + "/node": "node imports artifact", module + "/fsm": "artifacts know no workers", module + "/coord": "coord/worker imports artifact"},
	"guard":                 {module + "/node": "the guard outlives the node", module + "/api": "the guard outlives the node"},
	"miwtest":               {"github.com/hashicorp/raft": "ask nodetest", module + "/api": "it tests work, not calls", "go.uber.org/goleak": "its users would have to take it in"},
	"transport/transportpb": {module + "/transport": "transport imports its wire format"},
}

func TestImportDirection(t *testing.T) {
	for _, p := range listPackages(t, "./...") {
		rel := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		for _, imp := range p.Imports {
			if why, bad := forbidden[rel][imp]; bad {
				t.Errorf("%s imports %s: %s", rel, imp, why)
			}
			if imp == module+"/jepsen" && rel != "cmd/miwnode" && !strings.HasPrefix(rel, "jepsen") {
				t.Errorf("%s imports jepsen, which only tests and the command may", rel)
			}
			if strings.HasSuffix(imp, "/nodetest") && rel != "jepsen" && rel != "miwtest" {
				t.Errorf("%s imports nodetest outside a test", rel)
			}
			if imp == module+"/miwtest" {
				t.Errorf("%s imports miwtest outside a test", rel)
			}
		}
	}
}

// TestOnlyFsmMachineKnowsRaft keeps the replicated state free of raft but for its adapter.
func TestOnlyFsmMachineKnowsRaft(t *testing.T) {
	machine := []string{"machine.go", "watch.go"} // the adapter, and those who wait for it
	eachFile(t, "fsm", func(path string, f *ast.File) {
		if strings.HasSuffix(path, "_test.go") || slices.Contains(machine, filepath.Base(path)) {
			return
		}
		for _, imp := range f.Imports {
			p := strings.Trim(imp.Path.Value, `"`)
			if p == "github.com/hashicorp/raft" || p == "context" {
				t.Errorf("%s imports %s; of the state only %v may", path, p, machine)
			}
		}
	})
}

func TestEveryPackageHasOneDoc(t *testing.T) {
	for _, p := range listPackages(t, "./...") {
		if p.Name == "miwnode_test" || strings.HasSuffix(p.ImportPath, "pb") || len(p.GoFiles) == 0 {
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// TestNoTestCodeInBinary: what tests need must not reach users' binaries.
func TestNoTestCodeInBinary(t *testing.T) {
	for _, p := range listPackages(t, "./cmd/miwnode", "./node", "./coord", "./api", "./guard", "./artifact") {
		for _, d := range p.Deps {
			if d == "go.uber.org/goleak" || strings.HasSuffix(d, "/nodetest") || strings.HasSuffix(d, "/memnet") || d == module+"/miwtest" {
				t.Errorf("%s depends on %s", p.ImportPath, d)
			}
		}
		if slices.Contains(p.Imports, "testing") { // raft imports it, so it is among the Deps of most
			t.Errorf("%s imports testing", p.ImportPath)
		}
	}
}

func TestGoModHasNoReplace(t *testing.T) {
	b, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "\nreplace") {
		t.Error("go.mod has a replace directive; it does not reach those who import us")
	}
}

// TestBannedCalls: no printing, no exits, no naked clocks where there must be
// none, no sleeps in tests outside bubbles. A helper that only bubbles call says
// so in a comment: "in a bubble".
func TestBannedCalls(t *testing.T) {
	library := []string{"fsm", "transport", "node", "coord", "guard", "api", "artifact"}
	for _, dir := range library {
		eachFile(t, dir, func(path string, f *ast.File) {
			test := strings.HasSuffix(path, "_test.go") || strings.Contains(path, "nodetest")
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				name := selector(call.Fun)
				switch {
				case test:
				case strings.HasPrefix(name, "log.") && importsPath(f, "log") && name != "log.New", name == "fmt.Print", name == "fmt.Println", name == "fmt.Printf":
					t.Errorf("%s calls %s; take a *slog.Logger", path, name)
				case name == "os.Exit" && dir != "guard" && dir != "coord":
					t.Errorf("%s calls os.Exit", path)
				case strings.HasPrefix(path, "fsm/") && (name == "time.Now" || name == "time.Since"):
					t.Errorf("%s reads a clock", path)
				}
				return true
			})
		})
	}
	for _, dir := range append(library, "cmd", "examples", "jepsen", "miwtest") {
		eachFile(t, dir, func(path string, f *ast.File) {
			if !strings.HasSuffix(path, "_test.go") || importsPath(f, "testing/synctest") || importsPath(f, module+"/miwtest") || saysBubble(f) {
				return
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && selector(call.Fun) == "time.Sleep" {
					t.Errorf("%s sleeps outside a bubble; wait on a signal", path)
				}
				return true
			})
		})
	}
}

// TestScenariosAreTested: jepsen/README.md lists the packages that test each
// reported fault, and those are the ones that do.
func TestScenariosAreTested(t *testing.T) {
	listed, later := listedScenarios(t)
	for n := 1; n <= 107; n += 2 { // the numbers are odd on purpose
		name := fmt.Sprintf("B-%02d", n)
		if (len(listed[name]) > 0) == slices.Contains(later, name) {
			t.Errorf("jepsen/README.md must have %s either in its table of scenarios or among those that are owed later", name)
		}
	}
	tested := make(map[string][]string)
	number := regexp.MustCompile(`^"(B-\d+)[^"]*"$`)
	for _, dir := range []string{"fsm", "transport", "node", "coord", "guard", "api", "jepsen", "miwtest"} {
		scenarios := make(map[string][]string) // by package
		top := make(map[string]bool)
		eachFile(t, dir, func(path string, f *ast.File) {
			if !strings.HasSuffix(path, "_test.go") {
				return
			}
			pkg := filepath.ToSlash(filepath.Dir(path))
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					top[pkg] = top[pkg] || strings.HasPrefix(n.Name.Name, "TestScenario")
				case *ast.BasicLit:
					if m := number.FindStringSubmatch(n.Value); m != nil && !slices.Contains(scenarios[pkg], m[1]) {
						scenarios[pkg] = append(scenarios[pkg], m[1])
					}
				}
				return true
			})
		})
		for pkg, names := range scenarios {
			if !top[pkg] {
				t.Errorf("%s has scenarios, but no TestScenario that runs them", pkg)
			}
			for _, name := range names {
				tested[name] = append(tested[name], pkg)
			}
		}
	}
	for name := range tested {
		if _, known := listed[name]; !known {
			listed[name] = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if slices.Sort(tested[name]); !slices.Equal(listed[name], tested[name]) {
			t.Errorf("jepsen/README.md has %s in %v, the tests are in %v", name, listed[name], tested[name])
		}
	}
}

// listedScenarios reads the rows "| B-01 | coord, node |" and the line of what
// is owed later.
func listedScenarios(t *testing.T) (packages map[string][]string, later []string) {
	t.Helper()
	b, err := os.ReadFile("jepsen/README.md")
	if err != nil {
		t.Fatal(err)
	}
	packages = make(map[string][]string)
	row := regexp.MustCompile(`^\| (B-\d+) \| ([a-z/, ]+) \|`)
	for line := range strings.Lines(string(b)) {
		if m := row.FindStringSubmatch(line); m != nil {
			packages[m[1]] = strings.Split(m[2], ", ")
			slices.Sort(packages[m[1]])
		}
		if strings.HasPrefix(line, "Owed later") {
			later = regexp.MustCompile(`B-\d+`).FindAllString(line, -1)
		}
	}
	return packages, later
}

func saysBubble(f *ast.File) bool {
	return slices.ContainsFunc(f.Comments, func(c *ast.CommentGroup) bool { return strings.Contains(c.Text(), "in a bubble") })
}

func selector(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

func importsPath(f *ast.File, path string) bool {
	for _, imp := range f.Imports {
		if strings.Trim(imp.Path.Value, `"`) == path {
			return true
		}
	}
	return false
}

func eachFile(t *testing.T, dir string, visit func(path string, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		visit(path, f)
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}
