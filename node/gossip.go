package node

type addressBook struct{}
