package transport

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Names of the files that NewCA and NewNodeCert write.
const (
	CACertFile   = "ca.crt"
	CAKeyFile    = "ca.key"
	NodeCertFile = "node.crt"
	NodeKeyFile  = "node.key"
)

const (
	caLife       = 10 * 365 * 24 * time.Hour
	nodeCertLife = 5 * 365 * 24 * time.Hour
	clockSlack   = time.Hour // for clocks that are behind
	gossipKeyLen = 32
)

// NewCA makes a certificate authority and writes ca.crt and ca.key, mode 0600, into dir, which is made if need be. It overwrites nothing.
func NewCA(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make authority: %w", err)
	}
	cert, err := template("miwnode authority", caLife)
	if err != nil {
		return fmt.Errorf("make authority: %w", err)
	}
	cert.IsCA = true
	cert.BasicConstraintsValid = true
	cert.MaxPathLenZero = true
	cert.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		return fmt.Errorf("make authority: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("make authority: %w", err)
	}
	return writeNew(dir, file{CACertFile, serialPEM("CERTIFICATE", der)}, file{CAKeyFile, serialPEM("PRIVATE KEY", keyDER)})
}

// NewNodeCert makes the certificate of node id, signed by the authority in caDir, and writes node.crt, node.key and a copy of ca.crt, mode 0600, into outDir,
// which is made if need be. It overwrites nothing; the same ca.crt may be there. Where hosts (names or IP addresses) are given, the certificate is good
// for a node that advertises one of them, or a loopback address, only.
func NewNodeCert(caDir, id string, hosts []string, outDir string) error {
	if err := checkNodeID(id); err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}
	ca, caKey, caPEM, err := readCA(caDir)
	if err != nil {
		return err
	}
	cert, err := template(id, nodeCertLife)
	if err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}
	if cert.NotAfter.After(ca.NotAfter) {
		cert.NotAfter = ca.NotAfter
	}
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert.URIs = []*url.URL{certNode(id)}
	for _, h := range hosts {
		switch ip := net.ParseIP(strings.Trim(h, "[]")); {
		case ip != nil:
			cert.IPAddresses = append(cert.IPAddresses, ip)
		case h == "" || strings.ContainsAny(h, ":/ \t\n"):
			return fmt.Errorf("make certificate: host %q is neither a name nor an IP address (leave out the port)", h)
		default:
			cert.DNSNames = append(cert.DNSNames, h)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, ca, &key.PublicKey, caKey)
	if err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}
	files := []file{{NodeCertFile, serialPEM("CERTIFICATE", der)}, {NodeKeyFile, serialPEM("PRIVATE KEY", keyDER)}}
	if there, err := os.ReadFile(filepath.Join(outDir, CACertFile)); err != nil || !bytes.Equal(there, caPEM) {
		files = append(files, file{CACertFile, caPEM})
	}
	return writeNew(outDir, files...)
}

func template(name string, life time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-clockSlack),
		NotAfter:     now.Add(life),
	}, nil
}

// readCA reads what NewCA wrote.
func readCA(dir string) (cert *x509.Certificate, key any, certPEM []byte, err error) {
	fail := func(err error) (*x509.Certificate, any, []byte, error) {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: make the authority with `miwnode cert ca` first", err)
		}
		return nil, nil, nil, fmt.Errorf("read authority: %w", err)
	}
	if certPEM, err = os.ReadFile(filepath.Join(dir, CACertFile)); err != nil {
		return fail(err)
	}
	keyPEM, err := os.ReadFile(filepath.Join(dir, CAKeyFile))
	if err != nil {
		return fail(err)
	}
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return fail(fmt.Errorf("%s holds no PEM", filepath.Join(dir, CACertFile)))
	}
	if cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return fail(err)
	}
	if block, _ = pem.Decode(keyPEM); block == nil {
		return fail(fmt.Errorf("%s holds no PEM", filepath.Join(dir, CAKeyFile)))
	}
	if key, err = x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
		return fail(err)
	}
	return cert, key, certPEM, nil
}

// NewGossipKey returns a new random key.
func NewGossipKey() []byte {
	key := make([]byte, gossipKeyLen)
	_, _ = rand.Read(key) // never fails
	return key
}

// EncodeGossipKey returns the key as base64, as ParseGossipKey reads it.
func EncodeGossipKey(key []byte) string { return base64.StdEncoding.EncodeToString(key) }

// ParseGossipKey reads a key in base64; white space around it is ignored.
func ParseGossipKey(text string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("gossip key: not base64 (%w): make one with `miwnode keygen`", err)
	}
	if err := (Config{GossipKey: key}).validateGossipKey(); err != nil || len(key) == 0 {
		return nil, fmt.Errorf("gossip key: has %d bytes, must have 16, 24 or 32: make one with `miwnode keygen`", len(key))
	}
	return key, nil
}

// WriteGossipKey writes a key to a new file of mode 0600. It overwrites nothing.
func WriteGossipKey(path string, key []byte) error {
	return writeNew(filepath.Dir(path), file{filepath.Base(path), []byte(EncodeGossipKey(key) + "\n")})
}

// ReadGossipKey reads the file that WriteGossipKey, or `miwnode keygen`, wrote.
func ReadGossipKey(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("gossip key: %w", err)
	}
	key, err := ParseGossipKey(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

type file struct {
	name string
	data []byte
}

// writeNew writes all files or none, each new, for the owner's eyes only.
func writeNew(dir string, files ...file) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write %s: %w", files[0].name, err)
	}
	var written []string
	defer func() {
		if err != nil {
			for _, p := range written {
				_ = os.Remove(p) // made by us a moment ago
			}
		}
	}()
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		h, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("write %s: it exists and is not overwritten: move it away or choose another folder: %w", path, fs.ErrExist)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		written = append(written, path)
		_, err = h.Write(f.data)
		if err := errors.Join(err, h.Sync(), h.Close()); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}
