-- claim makes a process the owner of a shard, by compare-and-set of the token.
--
-- The accident: two processes take over the same shard, or a claim arrives again
-- after its owner has written. Only one of several claims of the same state
-- succeeds, and a repeated one changes nothing: in particular it does not reset
-- the sequence number.
--
-- KEYS: tasks, pending
-- ARGV: expected token ('' for none), new token
-- Returns {1} owned, {0, owner} refused.
local owner = redis.call('HGET', KEYS[1], '!o') or ''
if owner == ARGV[2] then
  return {1}
end
if owner ~= ARGV[1] then
  return {0, owner}
end
-- A Redis that is out of memory must still be adoptable, since only deliveries
-- will free it: after a removal, if only of nothing, a script may write. What is
-- removed is apply's note, whose number means nothing under the new token.
redis.call('HDEL', KEYS[1], '!r')
redis.call('HSET', KEYS[1], '!o', ARGV[2], '!s', 0)
redis.call('SADD', KEYS[2], '!')
return {1}
