-- putsetting writes a named value, by compare-and-set of its revision.
--
-- The accident: two processes, or an operator and a late copy of what was sent
-- before, overwrite each other's settings. A value is stored as its revision, a
-- colon and its bytes; a deleted one as its revision alone, so that revisions
-- only grow and a late copy never meets the revision that it expects.
--
-- Every change counts the field '!v' up, by which other nodes notice it.
--
-- KEYS: topics
-- ARGV: name, revision that must be current (0: none), '1' and value, or '0' and ''
-- Returns {1, revision}, or {0, current revision}.
local stored = redis.call('HGET', KEYS[1], ARGV[1]) or '0'
local colon = string.find(stored, ':', 1, true)
local last = tonumber(string.sub(stored, 1, (colon or 0) - 1))
local current = colon and last or 0
if (colon ~= nil) == (ARGV[3] == '1') and (not colon or string.sub(stored, colon + 1) == ARGV[4]) then
  return {1, current}
end
if current ~= tonumber(ARGV[2]) then
  return {0, current}
end
redis.call('HDEL', KEYS[1], '') -- see claim: a topic can be paused when Redis is full
local changes = tonumber(redis.call('HGET', KEYS[1], '!v') or 0) + 1
redis.call('HSET', KEYS[1], '!v', string.format('%.0f', changes))
local revision = string.format('%.0f', last + 1)
if ARGV[3] == '0' then
  redis.call('HSET', KEYS[1], ARGV[1], revision)
  return {1, 0}
end
redis.call('HSET', KEYS[1], ARGV[1], revision .. ':' .. ARGV[4])
return {1, last + 1}
