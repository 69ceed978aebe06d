-- claim makes a process the owner of a shard, by compare-and-set of the token.
--
-- The accident: two processes take over the same shard, or a claim arrives again
-- after its owner has written. Only one of several claims of the same state
-- succeeds, and a repeated one changes nothing: in particular it does not reset
-- the sequence number.
--
-- KEYS: tasks, pending
-- ARGV: expected token ('' for none), new token, and if the owner is held to be dead, the
--       count of affirm that is expected ('' for none)
-- Returns {1} owned, {0, owner} refused.
local owner = redis.call('HGET', KEYS[1], '!o') or ''
if owner == ARGV[2] then
  return {1}
end
if owner ~= ARGV[1] or ARGV[3] and (redis.call('HGET', KEYS[1], '!a') or '') ~= ARGV[3] then
  return {0, owner}
end
-- A Redis that is out of memory must still be adoptable, since only deliveries
-- will free it: after a removal, if only of nothing, a script may write. What is
-- removed is what means nothing under the new token: apply's note, affirm's count.
redis.call('HDEL', KEYS[1], '!r', '!a')
redis.call('HSET', KEYS[1], '!o', ARGV[2], '!s', 0)
redis.call('SADD', KEYS[2], '!')
return {1}
