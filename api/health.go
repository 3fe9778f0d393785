package api

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/miwnode/miwnode/fsm"
)

// healthz is 200 while the process serves.
func (c *call) healthz() (any, int, error) {
	if err := c.node.Healthy(); err != nil {
		return nil, 0, fsm.Errorf(fsm.CodeNotReady, "%v", err)
	}
	return Health{Revision: c.node.View().Revision(), OK: true}, http.StatusOK, nil
}

// readyz is 200 when the node knows a leader and its copy is caught up.
func (c *call) readyz() (any, int, error) {
	if err := c.node.ReadyErr(); err != nil {
		return nil, 0, fsm.Errorf(fsm.CodeNotReady, "%v", err)
	}
	return Health{Revision: c.node.View().Revision(), OK: true}, http.StatusOK, nil
}

func (c *call) metrics() (any, int, error) {
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(writeTimeout))
	c.h.metrics.ServeHTTP(c.w, c.r)
	return nil, 0, nil
}

func metricsHandler(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling: promhttp.ContinueOnError,
	})
}
