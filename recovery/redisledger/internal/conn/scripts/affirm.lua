-- affirm says that the owner of a shard is back after a silence.
--
-- The accident: a survivor finds a node dead, and adopts its shards, one after another.
-- Meanwhile the node sends heartbeats again, sees that a shard is still its own, and
-- delivers from it; then the survivor claims that shard too. So a claim of a dead node's
-- shard expects the count that was read before the last look at the heartbeats, and a node
-- that comes back raises the count before it trusts what it holds.
--
-- A failover may forget an adoption. So a node that comes back first says that the shard rests.
-- If the server has another history than before, it waits for the adopter, which claims the shard.
--
-- KEYS: tasks
-- ARGV: token, ' rests' or ''
-- Returns {owner, sequence, history of the server}; the count has grown if the token is the owner's.
local held = redis.call('HMGET', KEYS[1], '!o', '!s', '!a')
if held[1] == ARGV[1] then
  local count = string.match(held[3] or '', '^%d+') or 0
  redis.call('HDEL', KEYS[1], '') -- see claim: it must go through when Redis is full
  redis.call('HSET', KEYS[1], '!a', string.format('%d%s', count + 1, ARGV[2]))
end
return {held[1], held[2], history()}
