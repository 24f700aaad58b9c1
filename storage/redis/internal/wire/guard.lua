-- What every script begins with: it works on the data, and at the primary, that
-- the node knows, or not at all.
--
-- KEYS  1 epoch
-- ARGV  1 epoch, 2 replication id of the primary
--
-- Returns "epoch" or "server" if they are others.

local call = redis.call
if call('GET', KEYS[1]) ~= ARGV[1] then
  return {'epoch'}
end
local info = call('INFO', 'replication')
if not string.find(info, 'role:master\r\n', 1, true) or
   not string.find(info, 'master_replid:' .. ARGV[2], 1, true) then
  return {'server'}
end

