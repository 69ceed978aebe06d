package redisledger

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
	//go:embed scripts/prunesettings.lua
	pruneSettingsSource string
	//go:embed scripts/setaside.lua
	setAsideSource string

	applyScript         = newScript(applySource)
	claimScript         = newScript(claimSource)
	verifyScript        = newScript(verifySource)
	repairScript        = newScript(repairSource)
	retireScript        = newScript(retireSource)
	registerScript      = newScript(registerSource)
	beatScript          = newScript(beatSource)
	numberScript        = newScript(numberSource)
	forgetScript        = newScript(forgetSource)
	fileScript          = newScript(fileSource)
	putSettingScript    = newScript(putSettingSource)
	pruneSettingsScript = newScript(pruneSettingsSource)
	setAsideScript      = newScript(setAsideSource)
)

// A script is sent by its digest. It is sent in full only to a server that answers NOSCRIPT,
// which means that nothing was executed.
type script struct{ source, digest string }

func newScript(source string) script {
	return script{source: source, digest: redis.NewScript(source).Hash()}
}

// A processor sends commands: a client, or one connection of it.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// run runs a script and returns its reply.
func (s script) run(ctx context.Context, p processor, keys []string, args ...any) *redis.Cmd {
	return s.send(ctx, p, append(s.head(nil, keys), args...))
}

// head begins a command that runs the script, for send.
func (s script) head(command []any, keys []string) []any {
	command = append(command[:0], "evalsha", s.digest, len(keys))
	for i := range keys {
		command = append(command, &keys[i])
	}
	return command
}

func (s script) send(ctx context.Context, p processor, command []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, command...)
	_ = p.Process(ctx, cmd)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		command[0], command[1] = "eval", s.source
		cmd = redis.NewCmd(ctx, command...)
		_ = p.Process(ctx, cmd)
	}
	return cmd
}

// A verdict is the reply of a script that answers with a number and details.
type verdict struct {
	code   int64
	values []any
}

func judge(cmd *redis.Cmd) (verdict, error) {
	values, err := cmd.Slice()
	if err != nil {
		return verdict{}, err
	}
	if len(values) > 0 {
		if code, ok := values[0].(int64); ok {
			return verdict{code, values[1:]}, nil
		}
	}
	return verdict{}, fmt.Errorf("unexpected reply of a script: %v", values)
}

// text and number return the i-th detail, or nothing.
func (v verdict) text(i int) string {
	if i < len(v.values) {
		if s, ok := v.values[i].(string); ok {
			return s
		}
	}
	return ""
}

func (v verdict) number(i int) int64 {
	if i < len(v.values) {
		if n, ok := v.values[i].(int64); ok {
			return n
		}
	}
	return -1
}
