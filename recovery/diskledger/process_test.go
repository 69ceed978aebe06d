package diskledger

func runChild() {}
