package otlp

import (
	"strconv"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// sampler returns the sampler that OTEL_TRACES_SAMPLER names. Those that go by the parent also go
// by the link: an attempt has no parent, and should be there if the call that it links to is.
func (e *environment) sampler() sdk.Sampler {
	ratio := func() sdk.Sampler {
		arg := e.get("OTEL_TRACES_SAMPLER_ARG")
		if arg == "" {
			return sdk.AlwaysSample()
		}
		f, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(f >= 0 && f <= 1) {
			e.fault("OTEL_TRACES_SAMPLER_ARG", "must be from 0 to 1")
		}
		return sdk.TraceIDRatioBased(f)
	}
	switch e.get("OTEL_TRACES_SAMPLER") {
	case "always_on":
		return sdk.AlwaysSample()
	case "always_off":
		return sdk.NeverSample()
	case "traceidratio":
		return ratio()
	case "", "parentbased_always_on":
		return sdk.ParentBased(byLink{sdk.AlwaysSample()})
	case "parentbased_always_off":
		return sdk.ParentBased(byLink{sdk.NeverSample()})
	case "parentbased_traceidratio":
		return sdk.ParentBased(byLink{ratio()})
	}
	e.fault("OTEL_TRACES_SAMPLER", "must be always_on, always_off, traceidratio, or one of these after parentbased_")
	return nil
}

// byLink samples a span without a parent if the span is sampled to which it has its first link. It
// embeds the sampler of those without a link.
type byLink struct{ sdk.Sampler }

// ShouldSample implements sdk.Sampler.
func (s byLink) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	if len(p.Links) == 0 {
		return s.Sampler.ShouldSample(p)
	}
	if p.Links[0].SpanContext.IsSampled() {
		return sdk.SamplingResult{Decision: sdk.RecordAndSample}
	}
	return sdk.SamplingResult{Decision: sdk.Drop}
}

// Description implements sdk.Sampler.
func (s byLink) Description() string { return "ByLink{" + s.Sampler.Description() + "}" }
