package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/miwnode/miwnode/transport"
)

// closeHTTP deletes the session through a node's API. A session that is unknown or has run out is closed.
func closeHTTP(ctx context.Context, s Session) error {
	h := s.HTTP
	rt := &http.Transport{DisableKeepAlives: true}
	base := strings.TrimSuffix(h.Addr, "/")
	if !strings.HasPrefix(h.Addr, "http://") && !strings.HasPrefix(h.Addr, "https://") {
		base = "http://miwnode"
		rt.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return transport.DialUnix(ctx, h.Addr)
		}
	}
	if h.CAFile != "" {
		pem, err := os.ReadFile(h.CAFile)
		if err != nil {
			return fmt.Errorf("read authorities: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return fmt.Errorf("read authorities: %s holds no certificate", h.CAFile)
		}
		rt.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, base+"/v1/sessions/"+url.PathEscape(s.ID), nil)
	if err != nil {
		return fmt.Errorf("close session: %w", err)
	}
	if h.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.Token)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("close session: %w", err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNoContent, http.StatusGone:
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	return fmt.Errorf("close session: status %d: %s", resp.StatusCode, strings.TrimSpace(string(text)))
}
