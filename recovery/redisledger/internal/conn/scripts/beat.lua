-- beat counts a heartbeat of a node, if the process is still the registered one.
--
-- The accident: a process that was replaced keeps its successor's name alive; or a heartbeat
-- with a time to live runs out while Redis itself is down, and then all nodes look dead. A
-- counter that has not moved tells a survivor what it needs, and an extra beat does no harm.
--
-- KEYS: nodes, heartbeat, status
-- ARGV: node, incarnation, what others should know of its memory
-- Returns {1, count, registered nodes}, or {0, entry} for another process's.
local entry = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local ok, held = pcall(cjson.decode, entry)
if not ok or type(held) ~= 'table' or held.incarnation ~= ARGV[2] then
  return {0, entry}
end
redis.call('HDEL', KEYS[1], '') -- see claim: it must go through when Redis is full
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
end
local count = redis.pcall('INCR', KEYS[2])
if type(count) == 'table' then -- another program has overwritten the key
  redis.call('DEL', KEYS[2])
  count = redis.call('INCR', KEYS[2])
end
return {1, count, redis.call('HLEN', KEYS[1])}
