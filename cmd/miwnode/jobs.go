package main

import (
	"context"
	"encoding/json"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

func (a *app) jobsCommand() *cobra.Command {
	var page paging
	var prefix string
	key := ""
	return a.reading(readCommand{
		use: "jobs [KEY]", short: "List how often which job was executed, or the last executions of one",
		example: `  miwnode jobs
  miwnode jobs nightly
  miwnode jobs --prefix reports/ -o json`,
		args: atMostOne,
		flags: func(cmd *cobra.Command) {
			page.flags(cmd)
			cmd.Flags().StringVar(&prefix, "prefix", "", "only keys that begin so")
		},
		find: func(_ context.Context, _ *api.Client, args []string) (string, url.Values, error) {
			q := page.query()
			if len(args) == 1 {
				key = args[0]
				q.Set("key", key)
			}
			if prefix != "" {
				q.Set("prefix", prefix)
			}
			return "/v1/jobs", q, nil
		},
		show: func(raw []byte) error {
			var answer api.Jobs
			if err := json.Unmarshal(raw, &answer); err != nil {
				return err
			}
			switch {
			case key != "" && len(answer.Jobs) == 1:
				return a.showJob(answer.Jobs[0])
			case len(answer.Jobs) == 0 && page.after != "":
				return a.nothingAfter(page)
			case len(answer.Jobs) == 0 && prefix != "":
				return a.empty("No job that begins with %q was recorded.", prefix)
			case len(answer.Jobs) == 0:
				return a.empty("No jobs were recorded. Programs do it with coord.Record, or POST /v1/jobs/record.")
			}
			t := newTable(a.stdout, "JOB", "TOTAL", "LAST", "OUTCOME", "BY", "NODE")
			for _, j := range answer.Jobs {
				outcome := ""
				if n := len(j.Recent); n > 0 {
					outcome = j.Recent[n-1].Outcome
				}
				t.row(j.Key, j.Total, j.LastAt, outcome, j.Owner, j.NodeID)
			}
			if err := t.flush(); err != nil {
				return err
			}
			a.more(answer.Next)
			return nil
		},
	})
}

func (a *app) showJob(j api.Job) error {
	if j.Total == 0 {
		return a.empty("%q was never recorded.", j.Key)
	}
	if err := a.empty("%s: %d executions, the last %d:", j.Key, j.Total, len(j.Recent)); err != nil {
		return err
	}
	t := newTable(a.stdout, "FROM", "UNTIL", "OUTCOME", "BY", "NODE", "TOKEN", "DETAIL")
	for _, r := range j.Recent {
		t.row(r.At, r.EndedAt, r.Outcome, cmpOr(r.Name, r.InstanceID), r.NodeID, r.Token, r.Detail)
	}
	return t.flush()
}
