package main

import (
	"math/rand/v2"
	"slices"
)

// median returns the middle of the values, which it sorts.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// interval returns bounds between which 95 % of the medians of resampled values lie (bootstrap).
// The same values have the same interval.
func interval(values []float64) (low, high float64) {
	const resamples = 4000
	random := rand.New(rand.NewPCG(uint64(len(values)), 1))
	medians := make([]float64, resamples)
	drawn := make([]float64, len(values))
	for i := range medians {
		for j := range drawn {
			drawn[j] = values[random.IntN(len(values))]
		}
		medians[i] = median(drawn)
	}
	slices.Sort(medians)
	return medians[resamples*25/1000], medians[resamples*975/1000]
}
