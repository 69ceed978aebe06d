-- claim makes a process the owner of a shard, by compare-and-set of the token.
--
-- The accident: two processes take over the same shard, or a claim arrives again after its
-- owner has written. Of several claims of the same state only one succeeds. A repeated claim
-- changes nothing: in particular it does not reset the sequence number.
--
-- A hand-over also compares the sequence number: a Redis that has lost the last batches may
-- still have the token of the owner that wrote them. A hand-over that is repeated because Redis
-- has lost it leaves the number -1. So the receiver learns that batches may be lost as well.
--
-- KEYS: tasks, pending
-- ARGV: expected token ('' for none), new token, first sequence number, and what else is
--       expected: field and value of it ('' for none)
-- Returns {1} owned, {0, owner} refused.
local owner = redis.call('HGET', KEYS[1], '!o') or ''
if owner == ARGV[2] then
  return {1}
end
if owner ~= ARGV[1] or ARGV[4] and (redis.call('HGET', KEYS[1], ARGV[4]) or '') ~= ARGV[5] then
  return {0, owner}
end
-- A Redis that is out of memory must still be adoptable, since only deliveries will free
-- it: after a removal, if only of nothing, a script may write. It removes the fields that
-- are invalid under the new token: apply's note and affirm's count.
redis.call('HDEL', KEYS[1], '!r', '!a')
redis.call('HSET', KEYS[1], '!o', ARGV[2], '!s', ARGV[3])
redis.call('SADD', KEYS[2], '!')
return {1}
