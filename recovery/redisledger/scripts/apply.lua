-- apply writes one batch of one shard: all of it or nothing, and once.
--
-- The accident: a script whose answer timed out still runs, perhaps long after
-- it was sent again and later batches were written; and a process that has lost
-- the shard goes on sending. So a batch counts only with the owner's token and
-- the very next sequence number; a repeated one is recognised, and any other
-- changes nothing.
--
-- KEYS: tasks, pending, and for a batch that touches the dead: dead, deadindex
-- ARGV: token, sequence, the sizes of eight blocks, the blocks:
--   1 field and record of those that are new; it ends with '!s' and the sequence
--   2 ids that leave the pending       3 field and record of those that are put
--   4 ids that leave the dead          5 members that leave the index
--   6 id and record of the dead that are put
--   7 score and member of the same
--   8 field and number of a spool's mark, if all that is new comes from that spool
-- Returns {1, refused, inherited} written, {2, refused} written before, {0, owner,
-- sequence} not written.
--
-- A mark tells up to which number the shard has got what a spool had taken in. What it
-- has got before may be finished and gone since, and is not written again. The mark's
-- field is a member of pending as well, so that both hold as many.
--
-- Out of memory, Redis refuses a script's first write if it adds something, and
-- lets it write whatever it likes once it has removed something. So what is new
-- goes first. If it is refused, the rest is written without it: acknowledgements
-- and retries must not wait for memory, as they alone will free it. '!r' then
-- remembers the number, so that every copy of the batch gives the same answer.
local tasks, pending, dead, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local held = redis.call('HMGET', tasks, '!o', '!s', '!r')
local last, sequence = tonumber(held[2] or ''), tonumber(ARGV[2])
if held[1] ~= ARGV[1] or not last then
  return {0, held[1] or '', last or -1}
end
if last == sequence then
  -- WAIT asks replicas for what its connection has written. The one on which the batch
  -- was written may be gone, so a repeat writes as well, though nothing new.
  redis.call('SREM', pending, '') -- see below: it must go through when Redis is full
  redis.call('HSET', tasks, '!s', ARGV[2])
  return {2, held[3] == ARGV[2] and 1 or 0}
end
if last + 1 ~= sequence then
  return {0, held[1], last}
end

-- A command on a key of the wrong type ends the script, and what it has written stays. So
-- the types are looked at before the first write: otherwise the number would be taken, the
-- repeat be called written, and a task whose burial failed be in neither place.
redis.call('SCARD', pending)
if dead then
  redis.call('HLEN', dead)
  redis.call('ZRANGEBYLEX', index, '-', '-')
end

local from, to = {}, {}
local at = 11
for block = 1, 8 do
  from[block] = at
  at = at + tonumber(ARGV[2 + block])
  to[block] = at - 1
end
local function call(command, key, block)
  if to[block] >= from[block] then
    redis.call(command, key, unpack(ARGV, from[block], to[block]))
  end
end

local refused, inherited = 0, 0
local mark = to[8] > from[8] and ARGV[from[8]]
if mark and tonumber(redis.call('HGET', tasks, mark) or 0) >= tonumber(ARGV[to[8]]) then
  inherited, mark = 1, false
  from[1] = to[1] - 1 -- of what is new, only the sequence is left
end
local reply = redis.pcall('HSET', tasks, unpack(ARGV, from[1], to[1]))
if type(reply) == 'table' then
  if not string.find(reply.err, 'OOM ', 1, true) then
    return reply -- nothing was written
  end
  redis.call('SREM', pending, '') -- the removal, if only of nothing
  redis.call('HSET', tasks, '!s', ARGV[2])
  if to[1] > from[1] + 1 then
    refused = 1
    redis.call('HSET', tasks, '!r', ARGV[2])
  end
end
call('HDEL', tasks, 2)
call('SREM', pending, 2)
call('HDEL', dead, 4)
call('ZREM', index, 5)
call('HSET', tasks, 3)
local ids = {}
if mark and refused == 0 then
  redis.call('HSET', tasks, mark, ARGV[to[8]])
  ids[1] = mark
end
if refused == 0 then
  for i = from[1], to[1] - 2, 2 do
    ids[#ids + 1] = ARGV[i]
  end
end
for i = from[3], to[3], 2 do
  ids[#ids + 1] = ARGV[i]
end
if #ids > 0 then
  redis.call('SADD', pending, unpack(ids))
end
call('HSET', dead, 6)
call('ZADD', index, 7)
return {1, refused, inherited}
