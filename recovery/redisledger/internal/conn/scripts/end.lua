-- end says that the owner of a shard has ended in order, and writes nothing more of it. A node may
-- then adopt the shard without watching for a heartbeat, see claim.
--
-- The accident: a failover loses what followed the end. The shard is left there, though a node
-- has it. So what is said counts for the number of the last batch, and for the replication id
-- of this server: a server that has lost anything has another one.
--
-- KEYS: tasks
-- ARGV: token, number of the last batch
-- Returns 1 if it was said, 0 otherwise.
local held = redis.call('HMGET', KEYS[1], '!o', '!s')
local now = history()
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] or now == '' then
  return 0
end
redis.call('HDEL', KEYS[1], '') -- see claim: it must go through when Redis is full
redis.call('HSET', KEYS[1], '!a', 'ended ' .. ARGV[2] .. ' ' .. now)
return 1
