-- history returns the replication id of this server, or '' if the user of Redis may not ask. A
-- server that was restarted or promoted goes on with the writes that it has, under a new one.
local function history()
  local info = redis.pcall('INFO', 'replication')
  return type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or ''
end
