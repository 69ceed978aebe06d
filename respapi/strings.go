package respapi

// setAll answers plain SET commands of one pipeline, which are about different keys.
func setAll(sets []*call) {
	for _, x := range sets {
		x.verb.run(x)
	}
}
