-- prunesettings removes the revisions of deleted values that are in no kept change: an
-- earlier version left them for ever.
--
-- The accident: the value was set again meanwhile. So each is read once more, and '!f' keeps
-- the highest revision of those that are removed, see putsetting.
--
-- KEYS: topics
-- ARGV: names
-- Returns how many were removed.
local removed = 0
local highest = tonumber(redis.call('HGET', KEYS[1], '!f') or 0)
local before = highest
for _, name in ipairs(ARGV) do
  local left = redis.call('HGET', KEYS[1], name)
  if left and not string.find(left, ':', 1, true) then
    redis.call('HDEL', KEYS[1], name)
    highest = math.max(highest, tonumber(left))
    removed = removed + 1
  end
end
if highest > before then
  redis.call('HSET', KEYS[1], '!f', string.format('%.0f', highest))
end
return removed
