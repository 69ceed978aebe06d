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
-- An adoption expects that the server still has the history, by its replication id, that the
-- adopter has seen for long. Otherwise a failover may have lost that a node has adopted the shard.
--
-- Of an owner that has ended in order, the shard may be claimed without a look at its
-- heartbeats: if it still has the last batch of that owner, and this server has the history in
-- which the owner has ended.
--
-- KEYS: tasks, pending
-- ARGV: expected token ('' for none), new token, first sequence number, and what else is
--       expected: field and value of it ('' for none), history of the server ('' for any), 'ended'
--       if what the owner has said of its end must be valid, see end
-- Returns {1} owned, {0, owner} refused.
local owner = redis.call('HGET', KEYS[1], '!o') or ''
if owner == ARGV[2] then
  return {1}
end
if owner ~= ARGV[1] or ARGV[4] and (redis.call('HGET', KEYS[1], ARGV[4]) or '') ~= ARGV[5] then
  return {0, owner}
end
if ARGV[6] then
  local now = history()
  if ARGV[6] ~= '' and ARGV[6] ~= now
    or ARGV[7] and ARGV[5] ~= 'ended ' .. (redis.call('HGET', KEYS[1], '!s') or '') .. ' ' .. now then
    return {0, owner}
  end
end
-- A Redis that is out of memory must still be adoptable, since only deliveries will free
-- it: after a removal, if only of nothing, a script may write. It removes the fields that
-- are invalid under the new token: apply's note and affirm's count.
redis.call('HDEL', KEYS[1], '!r', '!a')
redis.call('HSET', KEYS[1], '!o', ARGV[2], '!s', ARGV[3])
redis.call('SADD', KEYS[2], '!')
return {1}
