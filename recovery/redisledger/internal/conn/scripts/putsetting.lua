-- putsetting writes a named value, by compare-and-set of its revision.
--
-- The accident: two processes, or an operator and a late copy of an earlier command,
-- overwrite each other's settings. A value is stored as its revision, a colon and its bytes;
-- a deleted one as its revision alone, so that revisions only grow and a late copy never
-- meets the revision that it expects.
--
-- Every change increments the field '!v', by which other nodes notice it, gives it a name of
-- its own in '!n', and adds it to the set of changes, which tells them what changed.
-- Changes that are too old leave the set, a few at a time, and the revisions of deleted values
-- with them; '!f' keeps the highest of those.
--
-- KEYS: topics, changes
-- ARGV: name, revision that must be current (0: none), '1' and value, or '0' and '', name of
--       the change, how many changes are kept, lowest revision of the new value: another
--       node may know a value that Redis has lost, and must not take a later value for an
--       older one
-- Returns {1, revision}, or {0, current revision}.
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if not stored then
  stored = tonumber(redis.call('HGET', KEYS[1], '!f') or 0) and redis.call('HGET', KEYS[1], '!f') or '0'
end
local colon = string.find(stored, ':', 1, true)
local last = tonumber(string.sub(stored, 1, (colon or 0) - 1))
if not last then
  last, colon = 1, 0 -- it is damaged: all of it is read as a value of revision 1
end
local current = colon and last or 0
local least = tonumber(ARGV[7])
if (colon ~= nil) == (ARGV[3] == '1') and (not colon or string.sub(stored, colon + 1) == ARGV[4]) and current >= least then
  return {1, current}
end
if current ~= tonumber(ARGV[2]) then
  return {0, current}
end
redis.call('HDEL', KEYS[1], '') -- see claim: a topic can be paused when Redis is full
local changes = (tonumber(redis.call('HGET', KEYS[1], '!v') or 0) or 0) + 1
local version = string.format('%016.0f', changes)
-- Redis has lost the changes that these entries belong to, and not the set.
for _, entry in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], '[' .. version, '+', 'LIMIT', 0, 8)) do
  redis.call('ZREM', KEYS[2], entry)
end
redis.call('ZADD', KEYS[2], 0, version .. ' ' .. ARGV[5] .. ' ' .. ARGV[1])
redis.call('HSET', KEYS[1], '!v', string.format('%.0f', changes), '!n', version .. ' ' .. ARGV[5])
last = math.max(last, least - 1)
local revision = string.format('%.0f', last + 1)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] == '0' and revision or revision .. ':' .. ARGV[4])

local oldest = changes - tonumber(ARGV[6])
if oldest > 0 then
  local old = redis.call('ZRANGEBYLEX', KEYS[2], '-', '(' .. string.format('%016.0f', oldest + 1), 'LIMIT', 0, 8)
  for _, entry in ipairs(old) do
    redis.call('ZREM', KEYS[2], entry)
    local name = string.sub(entry, 18 + #ARGV[5] + 1)
    local left = redis.call('HGET', KEYS[1], name)
    if left and not string.find(left, ':', 1, true) then
      redis.call('HDEL', KEYS[1], name)
      if tonumber(left) > tonumber(redis.call('HGET', KEYS[1], '!f') or 0) then
        redis.call('HSET', KEYS[1], '!f', left)
      end
    end
  end
end
return {1, ARGV[3] == '0' and 0 or last + 1}
