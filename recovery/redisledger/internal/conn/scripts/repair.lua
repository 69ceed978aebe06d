-- repair adds to the set the ids that have a record, and removes those that have none.
--
-- The accident: a truncated AOF ends between a batch's commands, so that a task is recorded
-- but not in the set that replay reads, or the reverse. The script decides by the records as
-- they are now, so it is right whenever it runs.
--
-- KEYS: tasks, pending
-- ARGV: token, ids
-- Returns how many ids were removed and then those that were added, or nil if the token is
-- not the owner's.
if redis.call('HGET', KEYS[1], '!o') ~= ARGV[1] then
  return false
end
redis.call('SREM', KEYS[2], '') -- see claim: it must go through when Redis is full
local result = {0}
for i = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then
    result[1] = result[1] + redis.call('SREM', KEYS[2], ARGV[i])
  elseif redis.call('SADD', KEYS[2], ARGV[i]) == 1 then
    result[#result + 1] = ARGV[i]
  end
end
return result
