package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// A setting of start is a flag, an environment variable MIW_<FLAG> and a key of
// the --config file, all with one name and one meaning; flag beats environment
// beats file.

type kind int

const (
	text  kind = iota + 1
	list       // repeatable; in the environment separated by commas
	lines      // repeatable; in the environment separated by newlines
	truth
)

type setting struct {
	name  string
	kind  kind
	value string // default, as shown; "" = none
	usage string
}

var startSettings = []setting{
	{"id", text, "", "node ID (default: made at the first start and kept in the data folder)"},
	{"data-dir", text, defaultDataDir, "data folder: identity, log, snapshots, miw.sock"},
	{"moved", truth, "false", "the data folder was moved or restored and nothing else of it is left: for one start, to take it for the original"},
	{"bind", text, "127.0.0.1:7400", "host:port to listen on, UDP and TCP"},
	{"advertise", text, "", "host:port that peers are told (default: --bind's)"},
	{"api", text, "127.0.0.1:7480", "host:port of the HTTP API; off leaves the unix socket only"},
	{"join", list, "", "a member to join: host:port (7400 without a port) of an address or a DNS name, or srv:NAME (repeatable)"},
	{"bootstrap-expect", text, "", "nodes that found a new cluster together (default: 1 without --join)"},
	{"voters", text, "5", "voting members to aim at: 1, 3, 5 or 7"},
	{"zone", text, "", "failure domain of this node"},
	{"label", list, "", "k=v, shown to planners and operators (repeatable)"},
	{"session-ttl", text, "10s", "life of the node's session without a confirmed keep-alive"},
	{"renew-interval", text, "2s", "time between keep-alives"},
	{"margin", text, "1s", "allowance for clocks that run at different rates"},
	{"stop-budget", text, "1s", "time between telling and making work stop"},
	{"drain-timeout", text, "30s", "how long a draining run may go on"},
	{"kill-timeout", text, "5s", "how long a cancelled run may take to return"},
	{"raft-timeout", text, "500ms", "raft's heartbeat and election timeout"},
	{"tls-ca", text, "", "PEM file of the cluster's authority"},
	{"tls-cert", text, "", "PEM file of this node's certificate"},
	{"tls-key", text, "", "PEM file of its key"},
	{"gossip-key-file", text, "", "file with the gossip key (miwnode keygen)"},
	{"api-token-file", text, "", "file with the token that callers of the API over TCP must send"},
	{"insecure", truth, "false", "allow addresses beyond loopback without TLS, keys and tokens"},
	{"workers", truth, "true", "load and run workers of the catalog on this node"},
	{"allow-private-sources", truth, "false", "let workers be fetched from URLs of private addresses, too"},
	{"log-level", text, "info", "debug, info, warn or error"},
	{"log-format", text, "text", "text or json"},
	{"group", list, "", "YAML file of a group whose workloads are commands, shared out among the nodes that name it (repeatable)"},
	{"singleton", lines, "", "key=CMD: run CMD on exactly one node (repeatable)"},
}

func (s setting) env() string {
	return "MIW_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// resolved is a setting's value and where it came from.
type resolved struct {
	values []string
	origin string // as in a message: --bind, MIW_BIND, miw.yaml: bind, default
}

func (r resolved) text() string {
	if len(r.values) == 0 {
		return ""
	}
	return r.values[len(r.values)-1]
}

type settings map[string]resolved

// settingFlags declares the flags of start.
func settingFlags(cmd *cobra.Command) {
	for _, s := range startSettings {
		use := fmt.Sprintf("%s [$%s]", s.usage, s.env())
		switch s.kind {
		case truth:
			cmd.Flags().Bool(s.name, s.value == "true", use)
		case list, lines:
			cmd.Flags().StringArray(s.name, nil, use)
		case text:
			cmd.Flags().String(s.name, s.value, use)
		}
	}
	for name, words := range map[string][]string{
		"log-level": {"debug", "info", "warn", "error"}, "log-format": {"text", "json"}, "voters": {"1", "3", "5", "7"},
	} {
		completeWords(cmd, name, words...)
	}
}

// resolve lays flags over environment over file over defaults. Faults of the
// file are all reported.
func (a *app) resolve(cmd *cobra.Command, file string) (settings, error) {
	var errs []error
	fromFile := map[string][]string{}
	if file == "" {
		file, _ = a.lookupEnv("MIW_CONFIG")
	}
	if file != "" {
		var err error
		if fromFile, err = readConfigFile(file); err != nil {
			errs = append(errs, err)
		}
	}
	all := settings{}
	for _, s := range startSettings {
		r := resolved{origin: "default"}
		if s.value != "" {
			r.values = []string{s.value}
		}
		if values, ok := fromFile[s.name]; ok {
			r = resolved{values, file + ": " + s.name}
		}
		if value, ok := a.lookupEnv(s.env()); ok {
			r = resolved{splitEnv(s.kind, value), s.env()}
		}
		if flag := cmd.Flags().Lookup(s.name); flag.Changed {
			r = resolved{[]string{flag.Value.String()}, "--" + s.name}
			if s.kind == list || s.kind == lines {
				r.values, _ = cmd.Flags().GetStringArray(s.name)
			}
		}
		all[s.name] = r
	}
	return all, errors.Join(errs...)
}

func splitEnv(k kind, value string) []string {
	sep := ""
	switch k {
	case list:
		sep = ","
	case lines:
		sep = "\n"
	case text, truth:
		return []string{value}
	}
	var values []string
	for _, v := range strings.Split(value, sep) {
		if v = strings.TrimSpace(v); v != "" {
			values = append(values, v)
		}
	}
	return values
}

// readConfigFile reads a YAML file whose keys are names of flags. Lists may be
// lists or, for label and singleton, maps.
func readConfigFile(path string) (map[string][]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("--config: %s is no YAML: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("--config: %s line %d: it must be a map of settings", path, top.Line)
	}
	var errs []error
	values := map[string][]string{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		at := slices.IndexFunc(startSettings, func(s setting) bool { return s.name == key.Value })
		if at < 0 {
			errs = append(errs, fmt.Errorf("--config: %s line %d: unknown setting %q%s", path, key.Line, key.Value, nearest(key.Value)))
			continue
		}
		if _, twice := values[key.Value]; twice {
			errs = append(errs, fmt.Errorf("--config: %s line %d: %q is given twice", path, key.Line, key.Value))
			continue
		}
		vs, err := yamlValues(startSettings[at].kind, value)
		if err != nil {
			errs = append(errs, fmt.Errorf("--config: %s line %d: %s %w", path, value.Line, key.Value, err))
			continue
		}
		values[key.Value] = vs
	}
	return values, errors.Join(errs...)
}

func yamlValues(k kind, n *yaml.Node) ([]string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	many := k == list || k == lines
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return nil, nil
	case n.Kind == yaml.ScalarNode:
		return []string{n.Value}, nil
	case n.Kind == yaml.SequenceNode && many:
		var values []string
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode {
				return nil, errors.New("must be a list of texts")
			}
			values = append(values, c.Value)
		}
		return values, nil
	case n.Kind == yaml.MappingNode && many:
		var values []string
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i+1].Kind != yaml.ScalarNode {
				return nil, errors.New("must be a map of texts")
			}
			values = append(values, n.Content[i].Value+"="+n.Content[i+1].Value)
		}
		return values, nil
	case many:
		return nil, errors.New("must be a list")
	}
	return nil, errors.New("must be one value")
}

// nearest suggests the setting that was meant.
func nearest(name string) string {
	plain := strings.ToLower(strings.NewReplacer("_", "-", " ", "-").Replace(name))
	for _, s := range startSettings {
		if s.name == plain || strings.ReplaceAll(s.name, "-", "") == strings.ReplaceAll(plain, "-", "") {
			return fmt.Sprintf(", did you mean %q?", s.name)
		}
	}
	return ""
}

// print writes the settings as a file that --config takes, with their origins.
func (s settings) print(out io.Writer) error {
	width := 0
	texts := make([]string, len(startSettings))
	for i, st := range startSettings {
		texts[i] = st.name + ": " + yamlText(st.kind, s[st.name].values)
		width = max(width, min(len(texts[i]), 48))
	}
	for i, st := range startSettings {
		if _, err := fmt.Fprintf(out, "%-*s  # %s\n", width, texts[i], s[st.name].origin); err != nil {
			return err
		}
	}
	return nil
}

func yamlText(k kind, values []string) string {
	quote := func(s string) string {
		b, err := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Value: s, Style: yaml.DoubleQuotedStyle})
		if err != nil {
			return fmt.Sprintf("%q", s)
		}
		return strings.TrimSpace(string(b))
	}
	switch k {
	case list, lines:
		quoted := make([]string, len(values))
		for i, v := range values {
			quoted[i] = quote(v)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case truth:
		return resolved{values: values}.text()
	case text:
	}
	if len(values) == 0 {
		return ""
	}
	return quote(values[len(values)-1])
}
