-- verify reports whether a shard still belongs to the caller, on a server that takes writes,
-- and how many records it holds.
--
-- The accident: a scan has read a replica, a former master, or a shard that another process
-- owns by now, and counts as complete. The removal of nothing is a write that a replica
-- refuses, and that Redis allows when it is out of memory.
--
-- KEYS: tasks, pending
-- Returns {owner, sequence, records, ids}.
redis.call('SREM', KEYS[2], '')
local held = redis.call('HMGET', KEYS[1], '!o', '!s')
local fields = redis.call('HLEN', KEYS[1])
for _, name in ipairs({'!o', '!s', '!r', '!a'}) do
  fields = fields - redis.call('HEXISTS', KEYS[1], name)
end
local members = redis.call('SCARD', KEYS[2]) - redis.call('SISMEMBER', KEYS[2], '!')
return {held[1] or '', tonumber(held[2] or '') or -1, fields, members}
