-- apply writes one batch of one shard: all of it or nothing, and once.
--
-- The accident: a script whose answer timed out still runs, perhaps long after it was sent
-- again and later batches were written; or a process that has lost the shard keeps sending.
-- So a batch is applied only with the owner's token and the very next sequence number. A
-- repeated batch is recognised, and any other changes nothing.
--
-- KEYS: tasks, pending, and for a batch with dead records: dead, deadindex
-- ARGV: token, sequence, a number and a size for each block that is not empty, those blocks:
--   1 field and record of new tasks; it ends with '!s' and the sequence
--   2 ids that leave the pending       3 field and record of other pending tasks
--   4 ids that leave the dead          5 members that leave the index
--   6 id and record of tasks that die
--   7 score and member of the same
--   8 field and number of a spool's mark, if all new tasks come from that spool
--   9 id and record of new tasks that are dead, which come from another ledger
--   10 score and member of the same
-- Returns {1, refused, inherited} written, {2, refused} written before, {0, owner,
-- sequence} not written.
--
-- A mark is the highest number that the shard has got from a spool. Tasks up to that number
-- may be finished and deleted since, and are not written again. The mark's field is a member
-- of pending as well, so that both keys hold equally many.
--
-- Out of memory, Redis refuses a script's first write if it adds something, and allows all
-- writes once the script has removed something. So new tasks are written first. If that is
-- refused, the rest is written without them: acknowledgements and retries must not wait for
-- memory, because only they free it. '!r' then holds the number, so that every copy of the
-- batch gives the same answer.
local tasks, pending, dead, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local held = redis.call('HMGET', tasks, '!o', '!s', '!r')
local last, sequence = tonumber(held[2] or ''), tonumber(ARGV[2])
if held[1] ~= ARGV[1] or not last then
  return {0, held[1] or '', last or -1}
end
if last == sequence then
  -- WAIT counts the replicas that have the writes of its connection. The connection on which
  -- the batch was written may be gone, so a repeat writes as well, though nothing new.
  redis.call('SREM', pending, '') -- see below: it must go through when Redis is full
  redis.call('HSET', tasks, '!s', ARGV[2])
  return {2, held[3] == ARGV[2] and 1 or 0}
end
if last + 1 ~= sequence then
  return {0, held[1], last}
end

-- A command on a key of the wrong type ends the script, and its earlier writes stay. So the
-- types are checked before the first write. Otherwise the number would be taken, the repeat
-- would count as written, and a task whose burial failed would be in neither place.
redis.call('SCARD', pending)
if dead then
  redis.call('HLEN', dead)
  redis.call('ZRANGEBYLEX', index, '-', '-')
end

local from, to, at = {}, {}, 4
for block, size in string.gmatch(ARGV[3], '(%d+) (%d+)') do
  block = tonumber(block)
  from[block] = at
  at = at + size
  to[block] = at - 1
end
local function call(command, key, block)
  if from[block] then
    redis.call(command, key, unpack(ARGV, from[block], to[block]))
  end
end

local refused, inherited = 0, 0
local mark = from[8] and ARGV[from[8]]
if mark and tonumber(redis.call('HGET', tasks, mark) or 0) >= tonumber(ARGV[to[8]]) then
  inherited, mark = 1, false
  from[1] = to[1] - 1 -- of the new fields, only the sequence is left
end
local reply = redis.pcall('HSET', tasks, unpack(ARGV, from[1], to[1]))
if type(reply) == 'table' then
  if not string.find(reply.err, 'OOM ', 1, true) then
    return reply -- nothing was written
  end
  redis.call('SREM', pending, '') -- a removal, though of nothing
  redis.call('HSET', tasks, '!s', ARGV[2])
  if to[1] > from[1] + 1 or from[9] then
    refused = 1
    redis.call('HSET', tasks, '!r', ARGV[2])
  end
end
call('HDEL', tasks, 2)
call('SREM', pending, 2)
call('HDEL', dead, 4)
call('ZREM', index, 5)
call('HSET', tasks, 3)
local ids, n = {}, 0
if mark and refused == 0 then
  redis.call('HSET', tasks, mark, ARGV[to[8]])
  ids[1], n = mark, 1
end
if refused == 0 then
  for i = from[1], to[1] - 2, 2 do
    n = n + 1
    ids[n] = ARGV[i]
  end
end
if from[3] then
  for i = from[3], to[3], 2 do
    n = n + 1
    ids[n] = ARGV[i]
  end
end
if n > 0 then
  redis.call('SADD', pending, unpack(ids))
end
call('HSET', dead, 6)
call('ZADD', index, 7)
if refused == 0 then
  call('HSET', dead, 9)
  call('ZADD', index, 10)
end
return {1, refused, inherited}
