package conn

import (
	"context"
	_ "embed" // the scripts are embedded
	"fmt"

	"github.com/redis/go-redis/v9"
)

// The scripts. Each is harmless when it runs twice or late, and its first lines say which
// accident it prevents.
var (
	//go:embed scripts/apply.lua
	applySource string
	//go:embed scripts/claim.lua
	claimSource string
	//go:embed scripts/affirm.lua
	affirmSource string
	//go:embed scripts/history.lua
	historySource string
	//go:embed scripts/end.lua
	endSource string
	//go:embed scripts/verify.lua
	verifySource string
	//go:embed scripts/repair.lua
	repairSource string
	//go:embed scripts/retire.lua
	retireSource string
	//go:embed scripts/register.lua
	registerSource string
	//go:embed scripts/beat.lua
	beatSource string
	//go:embed scripts/number.lua
	numberSource string
	//go:embed scripts/forget.lua
	forgetSource string
	//go:embed scripts/file.lua
	fileSource string
	//go:embed scripts/putsetting.lua
	putSettingSource string
	//go:embed scripts/setaside.lua
	setAsideSource string
	//go:embed scripts/keep.lua
	keepSource string

	ApplyScript      = NewScript(applySource)
	ClaimScript      = NewScript(historySource + claimSource)
	VerifyScript     = NewScript(verifySource)
	RepairScript     = NewScript(repairSource)
	RetireScript     = NewScript(retireSource)
	RegisterScript   = NewScript(registerSource)
	BeatScript       = NewScript(beatSource)
	NumberScript     = NewScript(numberSource)
	ForgetScript     = NewScript(forgetSource)
	FileScript       = NewScript(fileSource)
	PutSettingScript = NewScript(putSettingSource)
	SetAsideScript   = NewScript(setAsideSource)
	KeepScript       = NewScript(keepSource)
)

// Both have the function that they call in front.
var (
	EndSource    = historySource + endSource
	AffirmSource = historySource + affirmSource
)

// AskHistory adds to a pipeline a read of the replication id of the server that has a key: on Redis
// Cluster, each may be on another one. The answer is empty if the user of Redis may not ask.
func AskHistory(ctx context.Context, p redis.Pipeliner, key string) *redis.Cmd {
	return p.Eval(ctx, historySource+"return history()", []string{key})
}

// A Script is sent by its digest. It is sent in full only to a server that answers NOSCRIPT,
// which means that nothing was executed.
type Script struct{ Source, Digest string }

// NewScript makes a script from its text.
func NewScript(source string) Script {
	return Script{Source: source, Digest: redis.NewScript(source).Hash()}
}

// A Processor sends commands: a client, or one connection of it.
type Processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// Run runs a script and returns its reply.
func (s Script) Run(ctx context.Context, p Processor, keys []string, args ...any) *redis.Cmd {
	return s.Send(ctx, p, append(s.Head(nil, keys), args...))
}

// Head begins a command that runs the script, for Send.
func (s Script) Head(command []any, keys []string) []any {
	command = append(command[:0], "evalsha", s.Digest, len(keys))
	for i := range keys {
		command = append(command, &keys[i])
	}
	return command
}

// Send sends a command that Head has begun, and returns its reply.
func (s Script) Send(ctx context.Context, p Processor, command []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, command...)
	_ = p.Process(ctx, cmd)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		command[0], command[1] = "eval", s.Source
		cmd = redis.NewCmd(ctx, command...)
		_ = p.Process(ctx, cmd)
	}
	return cmd
}

// A Verdict is the reply of a script that answers with a number and details.
type Verdict struct {
	Code   int64
	Values []any
}

// Judge reads the reply of such a script. It fails if the reply has another form.
func Judge(cmd *redis.Cmd) (Verdict, error) {
	values, err := cmd.Slice()
	if err != nil {
		return Verdict{}, err
	}
	if len(values) > 0 {
		if code, ok := values[0].(int64); ok {
			return Verdict{code, values[1:]}, nil
		}
	}
	return Verdict{}, fmt.Errorf("unexpected reply of a script: %v", values)
}

// Text returns the i-th detail, or "" if it is no text.
func (v Verdict) Text(i int) string {
	if i < len(v.Values) {
		if s, ok := v.Values[i].(string); ok {
			return s
		}
	}
	return ""
}

// Number returns the i-th detail, or -1.
func (v Verdict) Number(i int) int64 {
	if i < len(v.Values) {
		if n, ok := v.Values[i].(int64); ok {
			return n
		}
	}
	return -1
}
