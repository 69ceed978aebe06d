-- number allots a number to a node's name, for as long as the name is registered.
--
-- The accident: two nodes start at the same moment and get one number, so that an id tells
-- the homes of both; or Redis has lost the list, and a number comes to mean another node
-- than in earlier ids. So the search begins with a number that is derived from the name: a
-- node finds its own again.
--
-- KEYS: numbers
-- ARGV: name, number to begin with, highest number
-- Returns the number, or 0 when all are taken.
local all = redis.call('HGETALL', KEYS[1])
for i = 2, #all, 2 do
  local n = tonumber(all[i - 1])
  if all[i] == ARGV[1] and n and n >= 1 and n <= tonumber(ARGV[3]) and n % 1 == 0 then
    return n
  end
end
redis.call('HDEL', KEYS[1], '') -- see claim: it must go through when Redis is full
local n, highest = tonumber(ARGV[2]), tonumber(ARGV[3])
for _ = 1, highest do
  if redis.call('HEXISTS', KEYS[1], n) == 0 then
    redis.call('HSET', KEYS[1], n, ARGV[1])
    return n
  end
  n = n % highest + 1
end
return 0
