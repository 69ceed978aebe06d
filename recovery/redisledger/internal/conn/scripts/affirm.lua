-- affirm says that the owner of a shard is back after a silence.
--
-- The accident: a survivor finds a node dead, and adopts its shards, one after another.
-- Meanwhile the node sends heartbeats again, sees that a shard is still its own, and
-- delivers from it; then the survivor claims that shard too. So a claim of a dead node's
-- shard expects the count that was read before the last look at the heartbeats, and a node
-- that comes back raises the count before it trusts what it holds.
--
-- KEYS: tasks
-- ARGV: token
-- Returns {owner, sequence, history of the server}; the count has grown if the token is the owner's.
local held = redis.call('HMGET', KEYS[1], '!o', '!s')
if held[1] == ARGV[1] then
  redis.call('HDEL', KEYS[1], '') -- see claim: it must go through when Redis is full
  if type(redis.pcall('HINCRBY', KEYS[1], '!a', 1)) == 'table' then -- the field held no number
    redis.call('HSET', KEYS[1], '!a', 1)
  end
end
return {held[1], held[2], history()}
