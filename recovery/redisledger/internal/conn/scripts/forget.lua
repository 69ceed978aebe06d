-- forget removes a node from the registry: a dead one without any shard.
--
-- The accident: machines are replaced, and all nodes keep watching the ones that are gone
-- and asking for them; or a node comes back at this very moment, and is removed while it
-- registers, or right after a heartbeat. A node that registers writes another entry, and a
-- heartbeat changes the count.
--
-- KEYS: nodes, heartbeat, status, numbers
-- ARGV: node, expected entry, expected count ('' for none), number
-- Returns 1 when the node is forgotten, 0 otherwise.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] or (redis.call('GET', KEYS[2]) or '') ~= ARGV[3] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
redis.call('HDEL', KEYS[3], ARGV[1])
if redis.call('HGET', KEYS[4], ARGV[4]) == ARGV[1] then
  redis.call('HDEL', KEYS[4], ARGV[4])
end
return 1
