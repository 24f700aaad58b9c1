-- Sets a record aside. No rule of govnode stands here.
--
-- KEYS  epoch, the record, where it is put, due, the list of what was set aside
-- ARGV  epoch, replication id of the primary, SHA-1 of the value that was seen
--       (empty: it was no string), what is put in its place, its name in both
--       lists, log time
--
-- Returns "ok"; "lost" if the value is another by now; or as guard.lua does.

local kind = call('TYPE', KEYS[2]).ok
if kind == 'none' or (kind == 'string') ~= (ARGV[3] ~= '') or
   kind == 'string' and redis.sha1hex(call('GET', KEYS[2])) ~= ARGV[3] then
  return {'lost'}
end
call('ZSCORE', KEYS[4], '')
call('ZSCORE', KEYS[5], '')
call('RENAME', KEYS[2], KEYS[3])
call('SET', KEYS[2], ARGV[4])
call('ZADD', KEYS[5], ARGV[6], ARGV[5])
call('ZREM', KEYS[4], ARGV[5])
return {'ok'}
