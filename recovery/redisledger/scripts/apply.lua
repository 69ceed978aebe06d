-- apply writes one batch of one shard: all of it or nothing, and once.
--
-- The accident: a script whose answer timed out still runs, perhaps long after
-- it was sent again and later batches were written; and a process that has lost
-- the shard goes on sending. So a batch counts only with the owner's token and
-- the very next sequence number; a repeated one is recognised, and any other
-- changes nothing.
--
-- KEYS: tasks, pending, and for a batch that touches the dead: dead, deadindex
-- ARGV: token, sequence, the sizes of six blocks, the blocks:
--   1 ids that leave the pending       2 field and record of those that are put;
--   3 ids that leave the dead            it begins with '!s' and the sequence
--   4 members that leave the index     5 id and record of the dead that are put
--   6 score and member of the same
-- Returns {1} written, {2} written before, {0, owner, sequence} refused.
--
-- What leaves goes first: once a script has removed something, Redis lets it
-- write although it is out of memory. So a batch with a removal is never refused
-- half-way, and acknowledgements go through when Redis is full.
local tasks, pending, dead, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local held = redis.call('HMGET', tasks, '!o', '!s')
local last, sequence = tonumber(held[2] or ''), tonumber(ARGV[2])
if held[1] ~= ARGV[1] or not last then
  return {0, held[1] or '', last or -1}
end
if last == sequence then
  return {2}
end
if last + 1 ~= sequence then
  return {0, held[1], last}
end

local from, to = {}, {}
local at = 9
for block = 1, 6 do
  from[block] = at
  at = at + tonumber(ARGV[2 + block])
  to[block] = at - 1
end
local function call(command, key, block)
  if to[block] >= from[block] then
    redis.call(command, key, unpack(ARGV, from[block], to[block]))
  end
end

call('HDEL', tasks, 1)
call('SREM', pending, 1)
call('HDEL', dead, 3)
call('ZREM', index, 4)
call('HSET', tasks, 2)
local ids = {}
for i = from[2] + 2, to[2], 2 do
  ids[#ids + 1] = ARGV[i]
end
if #ids > 0 then
  redis.call('SADD', pending, unpack(ids))
end
call('HSET', dead, 5)
call('ZADD', index, 6)
return {1}
