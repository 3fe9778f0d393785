package transport

// Names of the files that NewCA and NewNodeCert write.
const (
	CACertFile   = "ca.crt"
	CAKeyFile    = "ca.key"
	NodeCertFile = "node.crt"
	NodeKeyFile  = "node.key"
)

// NewCA makes a certificate authority and writes ca.crt and ca.key into dir.
func NewCA(dir string) error { return nil }

// NewNodeCert makes the certificate of node id, signed by the authority in caDir, and writes node.crt, node.key and a copy of
// ca.crt into outDir. Where hosts are given, the certificate is good for a node that advertises one of them only.
func NewNodeCert(caDir, id string, hosts []string, outDir string) error { return nil }

// NewGossipKey returns a new random key of 32 bytes.
func NewGossipKey() []byte { return nil }

// EncodeGossipKey returns the key as base64, as ParseGossipKey reads it.
func EncodeGossipKey(key []byte) string { return "" }

// ParseGossipKey reads a key in base64; space around it is ignored.
func ParseGossipKey(text string) ([]byte, error) { return nil, nil }

// WriteGossipKey writes a key to a new file of mode 0600.
func WriteGossipKey(file string, key []byte) error { return nil }

// ReadGossipKey reads the file that WriteGossipKey, or `miwnode keygen`, wrote.
func ReadGossipKey(file string) ([]byte, error) { return nil, nil }
