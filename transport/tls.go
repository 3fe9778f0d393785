package transport

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// alpn names the protocol inside TLS, so that a server of another one never takes our connections.
const alpn = "miwnode/1"

// nameScheme is the scheme of the URI in a certificate that names a node.
const nameScheme = "miwnode"

// reloadInterval is how often the files are looked at, at most: at handshakes only.
const reloadInterval = time.Second

// TLS is a node's certificate and the authority it trusts. The files are looked at again at handshakes: a change counts from then on, and a change
// that does not load leaves what was.
type TLS struct {
	caFile, certFile, keyFile string

	mu     sync.Mutex
	loaded *material // guarded by mu, like all below
	marks  [3]fileMark
	looked time.Time
	err    error // of the last reload
}

// material is what the files say.
type material struct {
	pool *x509.CertPool
	cert tls.Certificate
	leaf *x509.Certificate
}

// fileMark tells whether a file changed.
type fileMark struct {
	size    int64
	changed time.Time
}

// LoadTLS reads PEM files: the authority (one or several certificates), the node's certificate (with intermediates, if any) and its key. It refuses
// material that could not work.
func LoadTLS(caFile, certFile, keyFile string) (*TLS, error) {
	t := &TLS{caFile: caFile, certFile: certFile, keyFile: keyFile}
	marks, err := t.mark()
	if err != nil {
		return nil, err
	}
	m, err := t.read()
	if err != nil {
		return nil, err
	}
	t.loaded, t.marks, t.looked = m, marks, time.Now()
	return t, nil
}

// Files returns the paths the material is read from.
func (t *TLS) Files() (caFile, certFile, keyFile string) { return t.caFile, t.certFile, t.keyFile }

// NotAfter returns when the node's certificate runs out.
func (t *TLS) NotAfter() time.Time { return t.current().leaf.NotAfter }

// CheckName tells whether the certificate is good for a node with this ID and advertised address (host or host:port).
func (t *TLS) CheckName(nodeID, advertise string) error {
	return checkNames(t.current().leaf, nodeID, advertise)
}

// ReloadErr returns why the files as they are now could not be loaded; nil if they are the ones in use.
func (t *TLS) ReloadErr() error {
	t.current()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

func (t *TLS) mark() (marks [3]fileMark, err error) {
	for i, f := range [3]string{t.caFile, t.certFile, t.keyFile} {
		s, err := os.Stat(f)
		if err != nil {
			return marks, fmt.Errorf("TLS material: %w", err)
		}
		marks[i] = fileMark{s.Size(), s.ModTime()}
	}
	return marks, nil
}

func (t *TLS) read() (*material, error) {
	ca, err := os.ReadFile(t.caFile)
	if err != nil {
		return nil, fmt.Errorf("TLS material: %w", err)
	}
	m := &material{pool: x509.NewCertPool()}
	if !m.pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("TLS material: %s holds no certificate in PEM form", t.caFile)
	}
	cert, err := os.ReadFile(t.certFile)
	if err != nil {
		return nil, fmt.Errorf("TLS material: %w", err)
	}
	key, err := os.ReadFile(t.keyFile)
	if err != nil {
		return nil, fmt.Errorf("TLS material: %w", err)
	}
	if m.cert, err = tls.X509KeyPair(cert, key); err != nil {
		return nil, fmt.Errorf("TLS material: %s with %s: %w", t.certFile, t.keyFile, err)
	}
	m.leaf = m.cert.Leaf
	if err := m.verify(m.cert.Certificate); err != nil {
		return nil, fmt.Errorf("TLS material: %s is not good under %s: %w", t.certFile, t.caFile, err)
	}
	return m, nil
}

// current returns the material, read anew if the files changed.
func (t *TLS) current() *material {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if since := now.Sub(t.looked); since >= 0 && since < reloadInterval {
		return t.loaded
	}
	t.looked = now
	marks, err := t.mark()
	if err != nil {
		t.err = err
		return t.loaded
	}
	if marks == t.marks && t.err == nil {
		return t.loaded
	}
	m, err := t.read()
	if t.err = err; err == nil {
		t.loaded, t.marks = m, marks
	}
	return t.loaded
}

// verify checks a chain against the authority, for either use. Which node it is for is checked against the greeting.
func (m *material) verify(chain [][]byte) error {
	if len(chain) == 0 {
		return errNoCertificate
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, der := range chain[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		between.AddCert(c)
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots:         m.pool,
		Intermediates: between,
		CurrentTime:   time.Now(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err
}

var errNoCertificate = errors.New("the peer shows no certificate")

// config is common to both ends. Chains are verified by ourselves: nodes are known by their IDs, not by host names, and the authority may change
// while the node runs.
func (t *TLS) config() *tls.Config {
	m := t.current()
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{m.cert},
		NextProtos:             []string{alpn},
		SessionTicketsDisabled: true, // a resumed session would outlive a change of the authority
		VerifyPeerCertificate: func(chain [][]byte, _ [][]*x509.Certificate) error {
			return m.verify(chain)
		},
	}
}

func (t *TLS) serverConfig() *tls.Config {
	c := t.config()
	c.ClientAuth = tls.RequireAnyClientCert // and verified above
	return c
}

func (t *TLS) clientConfig() *tls.Config {
	c := t.config()
	c.InsecureSkipVerify = true //nolint:gosec // the chain is verified above, the name at the greeting
	c.ServerName = nameScheme
	return c
}

// certNode returns the URI that names a node in its certificate.
func certNode(id string) *url.URL { return &url.URL{Scheme: nameScheme, Opaque: url.PathEscape(id)} }

// checkNames tells whether a certificate is good for a node ID and an advertised host. The node is named by URIs miwnode:ID; if there are none, by a DNS
// name. Where a certificate names hosts too, the node must advertise one of them; a loopback address is always good.
func checkNames(cert *x509.Certificate, nodeID, advertise string) error {
	var nodes []string
	for _, u := range cert.URIs {
		if u.Scheme != nameScheme {
			continue
		}
		if id, err := url.PathUnescape(u.Opaque); err == nil {
			nodes = append(nodes, id)
		}
	}
	hosts := cert.DNSNames
	if len(nodes) == 0 {
		nodes = cert.DNSNames
		hosts = slices.DeleteFunc(slices.Clone(hosts), func(h string) bool { return h == nodeID })
	}
	if !slices.Contains(nodes, nodeID) {
		return fmt.Errorf("the certificate of %q names %s, not node %s: make one with `miwnode cert node --id %s`", cert.Subject.CommonName, orNobody(nodes), nodeID, nodeID)
	}
	if advertise == "" || len(hosts)+len(cert.IPAddresses) == 0 {
		return nil
	}
	host, _, err := splitHostPort(advertise, "0")
	if err != nil {
		return fmt.Errorf("advertised address: %w", err)
	}
	if isLoopback(host) {
		return nil
	}
	var all []string
	if ip, err := netip.ParseAddr(host); err == nil {
		for _, c := range cert.IPAddresses {
			if a, ok := netip.AddrFromSlice(c); ok && a.Unmap() == ip.Unmap() {
				return nil
			}
		}
	} else if (&x509.Certificate{DNSNames: hosts}).VerifyHostname(host) == nil {
		return nil
	}
	all = append(all, hosts...)
	for _, c := range cert.IPAddresses {
		all = append(all, c.String())
	}
	return fmt.Errorf("the certificate of node %s is for %s, not for %s, which it advertises: make one with `miwnode cert node --id %s --host %s`",
		nodeID, orNobody(all), host, nodeID, host)
}

func orNobody(names []string) string {
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, ", ")
}

// tlsRefusal turns what ended a handshake, or the first read after it, into a refusal; nil if it was no more than a broken connection.
func tlsRefusal(err error, listening bool) *RefusedError {
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if !listening && bytes.HasPrefix(record.RecordHeader[:], appendPreface(nil, kindWelcome)) {
			return &RefusedError{Refusal: RefusedPlain, ByPeer: true, Reason: "this node speaks TLS, the other has none: set tls-ca, tls-cert and tls-key on both or on none"}
		}
		return &RefusedError{Refusal: RefusedBadGreeting, Reason: fmt.Sprintf("what arrived begins with %q and is no TLS", record.RecordHeader[:])}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return &RefusedError{Refusal: RefusedBadCertificate, ByPeer: true, Reason: fmt.Sprintf(
			"the other end did not take the certificate of this one (%v): both must be made with one `miwnode cert ca`, and not have run out", op.Err)}
	}
	bad := func(why error) *RefusedError {
		return &RefusedError{Refusal: RefusedBadCertificate, Reason: fmt.Sprintf("%v: the certificates of both ends must be made with one `miwnode cert ca`", why)}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return bad(errors.New("the certificate of the other end is signed by another authority"))
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return bad(e)
	}
	if errors.Is(err, errNoCertificate) || strings.Contains(err.Error(), "didn't provide a certificate") { // crypto/tls has no name for it
		return bad(errNoCertificate)
	}
	return nil
}

// serialPEM returns the PEM form of one block.
func serialPEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
