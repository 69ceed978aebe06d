-- keep writes rows of an archive that expire.
--
-- The accident: the rows are written and their key never expires, because the connection breaks
-- in between or the user of Redis may not call PEXPIRE. So the first call is a PEXPIRE, which
-- fails before anything is written.
--
-- KEYS: rows of one period
-- ARGV: milliseconds until they expire, and field and value of each row
redis.call('PEXPIRE', KEYS[1], ARGV[1])
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
