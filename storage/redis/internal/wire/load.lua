-- Reads records. No rule of govnode stands here.
--
-- KEYS  epoch, clock, counts, then for each of n records its key and the key of
--       the index that lists it, then parts of remembered ids
-- ARGV  epoch, replication id of the primary, n, "1" if the indexes must be
--       whole and a record is there if and only if its index lists it, "2" if
--       besides there may be no other record in the namespace, then the name of
--       each record in its index
--
-- Returns "ok", the clock, the value of each record, the value of each part, an
-- error for what is no string; or "absent" and the number of a record that is
-- gone or whose index has lost names, 0 for the clock; or "more" if there are
-- other records; or as guard.lua does.

local n = tonumber(ARGV[3])
local clock = call('GET', KEYS[2])
if not clock or #clock < 21 or not string.find(clock, '^%d+ %d+$') or string.sub(clock, 20, 20) ~= ' ' then
  return {'absent', 0}
end
local known = {}
local function whole(index)
  if known[index] == nil then
    known[index] = call('ZSCORE', KEYS[3], '!') and
      call('ZCARD', index) == tonumber(call('ZSCORE', KEYS[3], string.sub(index, -1)) or 0) or false
  end
  return known[index]
end
local reply, there = {'ok', clock}, 0
for i = 1, n do
  local value = redis.pcall('GET', KEYS[2 + 2 * i])
  if ARGV[4] ~= '0' then
    local index = KEYS[3 + 2 * i]
    local listed = call('ZSCORE', index, ARGV[4 + i])
    if (value and not listed) or (listed and not value) or not (value or whole(index)) then
      return {'absent', i}
    end
  end
  reply[2 + i] = value
  there = there + (value and 1 or 0)
end
if ARGV[4] == '2' then
  local counts, all = call('ZRANGE', KEYS[3], '0', '-1', 'WITHSCORES'), 0
  for i = 2, #counts, 2 do
    all = all + tonumber(counts[i])
  end
  if all ~= there then
    return {'more'}
  end
end
for i = 4 + 2 * n, #KEYS do
  reply[i - n - 1] = redis.pcall('GET', KEYS[i])
end
return reply
