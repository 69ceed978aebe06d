-- retire retires a shard that is not used any more, if it is empty.
--
-- The accident: the number of shards was lowered, and a shard is dropped that still holds
-- tasks, or gets one between the check and the drop. A marker replaces the token: a missing
-- token means that Redis has lost its data.
--
-- KEYS: tasks, pending, dead
-- ARGV: token, marker
-- Returns 1 when the shard is retired, 0 otherwise.
local owner = redis.call('HGET', KEYS[1], '!o')
if owner == ARGV[2] then
  return 1
end
local members = redis.call('SCARD', KEYS[2])
if owner ~= ARGV[1] or members > 100 or redis.call('EXISTS', KEYS[3]) == 1
  or redis.call('HLEN', KEYS[1]) > 1 + members + redis.call('HEXISTS', KEYS[1], '!r') + redis.call('HEXISTS', KEYS[1], '!a') then
  return 0
end
for _, member in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  if string.sub(member, 1, 1) ~= '!' then
    return 0 -- the others are the anchor, and marks of spools, which stay
  end
end
redis.call('HDEL', KEYS[1], '!r', '!a') -- see claim: it must go through when Redis is full
redis.call('HSET', KEYS[1], '!o', ARGV[2])
return 1
