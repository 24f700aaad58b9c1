-- Reads records. No rule of govnode stands here.
--
-- KEYS  epoch, clock, then for each of n records its key and the key of the
--       index that lists it, then parts of remembered ids
-- ARGV  epoch, replication id of the primary, n, "1" if a record that an index
--       lists must be there, then the name of each record in its index
--
-- Returns "ok", the clock, the value of each record, the value of each part; or
-- "epoch" or "server" if this is not the data or not the primary that the node
-- knows; or "absent" and the number of a record that is listed and not
-- there, 0 for the clock.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'epoch'}
end
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master\r\n', 1, true) or
   not string.find(info, 'master_replid:' .. ARGV[2], 1, true) then
  return {'server'}
end

local n = tonumber(ARGV[3])
local clock = redis.call('GET', KEYS[2])
if not clock then
  return {'absent', 0}
end
local reply = {'ok', clock}
for i = 1, n do
  local value = redis.call('GET', KEYS[1 + 2 * i])
  if not value and ARGV[4] == '1' and redis.call('ZSCORE', KEYS[2 + 2 * i], ARGV[4 + i]) then
    return {'absent', i}
  end
  reply[2 + i] = value
end
for i = 3 + 2 * n, #KEYS do
  reply[i - n] = redis.call('GET', KEYS[i])
end
return reply
