package respapi

import (
	"bytes"
	"strings"
)

// otherTypes are the commands of Redis about values that are no strings, by what these are.
var otherTypes = map[string]string{
	"lists": "blmove blmpop blpop brpop brpoplpush lindex linsert llen lmove lmpop lpop lpos lpush lpushx lrange lrem lset ltrim" +
		" rpop rpoplpush rpush rpushx",
	"hashes": "hdel hexists hget hgetall hincrby hincrbyfloat hkeys hlen hmget hmset hrandfield hscan hset hsetnx hstrlen hvals",
	"sets": "sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers smismember smove spop srandmember srem" +
		" sscan sunion sunionstore",
	"sorted sets": "bzmpop bzpopmax bzpopmin zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard zinterstore zlexcount zmpop" +
		" zmscore zpopmax zpopmin zrandmember zrange zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank" +
		" zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion zunionstore",
	"functions": "fcall fcall_ro function",
}

// typeOf are the commands of otherTypes, each with what it is about.
var typeOf = func() map[string]string {
	all := make(map[string]string)
	for kind, commands := range otherTypes {
		for _, name := range strings.Fields(commands) {
			all[name] = kind
		}
	}
	return all
}()

// hint returns what else the answer to an unknown command says; "": nothing.
func hint(name []byte) string {
	if kind := typeOf[strings.ToLower(cut(name, 32))]; kind != "" {
		return "there are no " + kind + " here, see docs/redis.md"
	}
	return ""
}

// unknownCommand returns the answer to a command that there is not, which is that of Redis up to
// the hint.
func unknownCommand(args [][]byte) string {
	var b strings.Builder
	if v := verbs[strings.ToLower(string(args[0]))]; v != nil { // a subcommand
		return "ERR unknown subcommand '" + cut(args[1], 128) + "'. Try " + strings.ToUpper(v.name) + " HELP."
	}
	b.WriteString("ERR unknown command '" + cut(args[0], 128) + "', with args beginning with: ")
	for _, a := range args[1:] {
		if b.Len() >= 128 {
			break
		}
		b.WriteString("'" + cut(a, 128-b.Len()) + "' ")
	}
	if text := hint(args[0]); text != "" {
		b.WriteString("(" + text + ")")
	}
	return b.String()
}

// cut returns what Redis shows of an argument in an error: up to n bytes, and none after a zero.
func cut(b []byte, n int) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b[:min(len(b), max(n, 0))])
}
