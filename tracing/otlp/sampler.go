package otlp

import (
	"cmp"
	"strconv"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// sampler returns the sampler that OTEL_TRACES_SAMPLER names, and its name and argument. Those that
// go by the parent also go by the link: an attempt has no parent, and should be there if the call
// that it links to is.
func (e *environment) sampler() (s sdk.Sampler, samples string) {
	samples = cmp.Or(e.get("OTEL_TRACES_SAMPLER"), "parentbased_always_on")
	ratio := func() sdk.Sampler {
		arg := e.get("OTEL_TRACES_SAMPLER_ARG")
		samples = strings.TrimSpace(samples + " " + arg)
		if arg == "" {
			return sdk.AlwaysSample()
		}
		f, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(f >= 0 && f <= 1) {
			e.fault("OTEL_TRACES_SAMPLER_ARG", "must be from 0 to 1")
		}
		return sdk.TraceIDRatioBased(f)
	}
	switch samples {
	case "always_on":
		s = sdk.AlwaysSample()
	case "always_off":
		s = sdk.NeverSample()
	case "traceidratio":
		s = ratio()
	case "parentbased_always_on":
		s = sdk.ParentBased(byLink{sdk.AlwaysSample()})
	case "parentbased_always_off":
		s = sdk.ParentBased(byLink{sdk.NeverSample()})
	case "parentbased_traceidratio":
		s = sdk.ParentBased(byLink{ratio()})
	default:
		e.fault("OTEL_TRACES_SAMPLER", "must be always_on, always_off, traceidratio, or one of these after parentbased_")
	}
	return s, samples
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
