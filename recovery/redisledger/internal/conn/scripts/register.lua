-- register writes a node's entry in the registry, by compare-and-set.
--
-- The accident: two processes start under one name at the same moment and both find it free.
-- An entry names its process by a random incarnation, so a late copy of a registration never
-- meets the state that it expects.
--
-- KEYS: nodes
-- ARGV: node, expected entry ('' for none), new entry
-- Returns {1} registered, {0, entry} refused.
local entry = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if entry == ARGV[3] then
  return {1}
end
if entry ~= ARGV[2] then
  return {0, entry}
end
redis.call('HDEL', KEYS[1], '') -- see claim: it must go through when Redis is full
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {1}
