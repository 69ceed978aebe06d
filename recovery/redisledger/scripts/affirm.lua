-- affirm says that the owner of a shard is back after a silence.
--
-- The accident: a survivor finds a node dead, and adopts what it held, shard by shard.
-- Meanwhile the node is heard again, sees that a shard is still its own, and delivers
-- from it; and then the survivor claims that shard too. A claim from the dead expects
-- the count that was read before their life signs were looked at for the last time,
-- and whoever comes back counts on before it trusts what it holds.
--
-- KEYS: tasks
-- ARGV: token
-- Returns {owner, sequence}; the count has grown if the token is the owner's.
local held = redis.call('HMGET', KEYS[1], '!o', '!s')
if held[1] == ARGV[1] then
  redis.call('HDEL', KEYS[1], '') -- see claim: it must go through when Redis is full
  if type(redis.pcall('HINCRBY', KEYS[1], '!a', 1)) == 'table' then -- it was no number
    redis.call('HSET', KEYS[1], '!a', 1)
  end
end
return held
