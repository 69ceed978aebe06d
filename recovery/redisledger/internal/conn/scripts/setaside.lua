-- setaside renames a key that Lapse has not written.
--
-- The accident: two nodes see the damage, the first one sets the key aside and writes a new
-- one, and the second one sets the new one aside. So the script checks the key once more.
--
-- KEYS: key, its new name
-- ARGV: '=' and the value of a string that cannot be read; or a command that fails with
--       WRONGTYPE, and its arguments after the key
-- Returns 1 when the key was renamed.
local damaged
if ARGV[1] == '=' then
  damaged = redis.call('GET', KEYS[1]) == ARGV[2]
else
  local reply = redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))
  damaged = type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true)
end
if not damaged then
  return 0
end
redis.call('RENAME', KEYS[1], KEYS[2])
return 1
