-- file changes where ids are filed, each by compare-and-set.
--
-- The accident: two nodes create the same id at the same time, or a late copy of a change
-- removes what was filed after it. An id changes only if it is filed where the change
-- expects it. A filing's nonce tells it from all others, so a repeated change finds its own
-- result and counts as made.
--
-- KEYS: buckets, each once
-- ARGV: for each bucket the number of its changes n, then n ids, the n expected filings, and
--       the n new ones; '' means not filed. An id comes once.
-- Returns {refused, mark, ..., position, filing, ...}: the mark of each bucket, '' for none; then
-- for each change that was not made its position among all, from 1, and where the id is filed.
--
-- Out of memory, Redis refuses a script's first write if it adds something, and allows all
-- writes once the script has removed something. So new ids are written first. If that is
-- refused, the rest is done without them: removals and moves must not wait for memory.
local reply = {0}
for b = 1, #KEYS do
  reply[b + 1] = redis.call('HGET', KEYS[b], '!') or ''
end
local moves, removals = {}, {} -- by bucket
local at, position, oom = 1, 0, false
for b = 1, #KEYS do
  local n = tonumber(ARGV[at])
  local held = redis.call('HMGET', KEYS[b], unpack(ARGV, at + 1, at + n))
  local new, size = {}, 0
  for i = 1, n do
    local id, old, now = ARGV[at + i], ARGV[at + n + i], ARGV[at + 2 * n + i]
    local stands = held[i] or ''
    if stands ~= now then
      if stands ~= old then
        reply[#reply + 1] = position + i
        reply[#reply + 1] = stands
      elseif old == '' then
        new[size + 1] = id
        new[size + 2] = now
        size = size + 2
      elseif now == '' then
        local removal = removals[b] or {}
        removal[#removal + 1] = id
        removals[b] = removal
      else
        local move = moves[b] or {}
        move[#move + 1] = id
        move[#move + 1] = now
        moves[b] = move
      end
    end
  end
  if size > 0 then
    local result = oom or redis.pcall('HSET', KEYS[b], unpack(new))
    if type(result) == 'table' then
      if not string.find(result.err, 'OOM ', 1, true) then
        return result -- the writes so far can be repeated
      end
      oom = result
      reply[1] = 1
      for i = 1, n do
        if not held[i] and ARGV[at + n + i] == '' and ARGV[at + 2 * n + i] ~= '' then
          reply[#reply + 1] = position + i
          reply[#reply + 1] = ''
        end
      end
    end
  end
  at = at + 1 + 3 * n
  position = position + n
end
for b = 1, #KEYS do
  if removals[b] then
    redis.call('HDEL', KEYS[b], unpack(removals[b]))
  end
  if moves[b] then
    redis.call('HDEL', KEYS[b], '') -- a removal, though of nothing
    redis.call('HSET', KEYS[b], unpack(moves[b]))
  end
end
return reply
