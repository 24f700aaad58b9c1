-- Sets a record aside. No rule of govnode stands here.
--
-- KEYS  epoch, the record, due, the list of what was set aside, where it is put,
--       then where that is moved if something is kept there already
-- ARGV  epoch, replication id of the primary, SHA-1 of the value that was seen
--       (empty: it was no string), what is put in its place, its name in both
--       lists, log time
--
-- Returns "ok" and where that was moved, empty if nothing was; "lost" if the value
-- is another by now; "full" if there is no place left: nothing that is kept is ever
-- written over; or as guard.lua does.

local kind = call('TYPE', KEYS[2]).ok
if kind == 'none' or (kind == 'string') ~= (ARGV[3] ~= '') or
   kind == 'string' and redis.sha1hex(call('GET', KEYS[2])) ~= ARGV[3] then
  return {'lost'}
end
call('ZSCORE', KEYS[3], '')
call('ZSCORE', KEYS[4], '')
local moved = ''
if call('EXISTS', KEYS[5]) == 1 then
  for i = 6, #KEYS do
    if call('EXISTS', KEYS[i]) == 0 then
      moved = KEYS[i]
      break
    end
  end
  if moved == '' then
    return {'full'}
  end
  call('RENAME', KEYS[5], moved)
end
call('RENAME', KEYS[2], KEYS[5])
call('SET', KEYS[2], ARGV[4])
call('ZADD', KEYS[4], ARGV[6], ARGV[5])
call('ZREM', KEYS[3], ARGV[5])
return {'ok', moved}
