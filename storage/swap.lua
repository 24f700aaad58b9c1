-- Compares and swaps records. No rule of govnode stands here.
--
-- KEYS  epoch, frozen, clock, due, then for each of n records its key and the
--       key of the index that lists it, then parts of remembered ids
-- ARGV  epoch, replication id of the primary, now, the latest clock that now
--       may be behind, n, the number of parts to return if the swap is lost,
--       a channel (empty: nobody is told), the message;
--       then for each record its stamp, empty if it must be absent;
--       then for each record its name in its index;
--       then operations: a letter and its arguments
--
-- A value begins with a stamp of 16 bytes that was never used before. Everything
-- is checked before anything is written, types of keys included, since a script
-- that fails half-way is not rolled back.
--
-- Returns "ok" and the clock; or "lost", the clock, and the values of all records
-- and of the parts asked for; or "frozen" while a snapshot is saved; or "epoch",
-- "server" or "absent" as load.lua does, "absent" with 0 for the clock.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'epoch'}
end
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master\r\n', 1, true) or
   not string.find(info, 'master_replid:' .. ARGV[2], 1, true) then
  return {'server'}
end

local n, p = tonumber(ARGV[5]), tonumber(ARGV[6])
local clock = redis.call('GET', KEYS[3])
if not clock then
  return {'absent', 0}
end
local now = string.sub(clock, 1, 19)

local lost = now > ARGV[4]
for i = 1, n do
  if redis.call('GETRANGE', KEYS[3 + 2 * i], 0, 15) ~= ARGV[8 + i] then
    lost = true
    break
  end
end
if lost then
  local reply = {'lost', clock}
  for i = 1, n do
    local value = redis.call('GET', KEYS[3 + 2 * i])
    if not value and redis.call('ZSCORE', KEYS[4 + 2 * i], ARGV[8 + n + i]) then
      return {'absent', i}
    end
    reply[2 + i] = value
  end
  for i = 1, p do
    reply[2 + n + i] = redis.call('GET', KEYS[4 + 2 * n + i])
  end
  return reply
end

local first = 9 + 2 * n
if first > #ARGV then
  return {'ok', clock}
end
if n > 0 and redis.call('EXISTS', KEYS[2]) == 1 then
  return {'frozen'}
end

-- arguments of each operation, beside its letter
local args = {C = 0, S = 2, D = 1, A = 2, W = 2, X = 1, Z = 2, R = 1, I = 2, J = 2}
local i = first
while i <= #ARGV do
  local op = ARGV[i]
  if op == 'A' or op == 'W' or op == 'X' then
    redis.call('STRLEN', KEYS[tonumber(ARGV[i + 1])])
  elseif op == 'Z' or op == 'R' then
    redis.call('ZSCORE', KEYS[4], '')
  elseif op == 'I' or op == 'J' then
    redis.call('ZSCORE', KEYS[tonumber(ARGV[i + 1])], '')
  end
  i = i + 1 + args[op]
end

-- The clock comes first: if this Redis takes no writes, nothing was written.
local seq = tonumber(string.sub(clock, 21)) or 0
if n > 0 then
  seq = seq + 1
end
if ARGV[3] > now then
  now = ARGV[3]
end
clock = now .. ' ' .. string.format('%.0f', seq)
redis.call('SET', KEYS[3], clock)

i = first
while i <= #ARGV do
  local op = ARGV[i]
  if op == 'S' or op == 'W' then
    redis.call('SET', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2])
  elseif op == 'A' then
    redis.call('APPEND', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2])
  elseif op == 'D' or op == 'X' then
    redis.call('DEL', KEYS[tonumber(ARGV[i + 1])])
  elseif op == 'Z' then
    redis.call('ZADD', KEYS[4], ARGV[i + 1], ARGV[i + 2])
  elseif op == 'R' then
    redis.call('ZREM', KEYS[4], ARGV[i + 1])
  elseif op == 'I' then
    redis.call('ZADD', KEYS[tonumber(ARGV[i + 1])], 0, ARGV[i + 2])
  elseif op == 'J' then
    redis.call('ZREM', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2])
  end
  i = i + 1 + args[op]
end
if ARGV[7] ~= '' then
  redis.call('PUBLISH', ARGV[7], ARGV[8])
end
return {'ok', clock}
