-- Compares and swaps records. No rule of govnode stands here.
--
-- KEYS  epoch, frozen, clock, due, turns, counts, marks, then m indexes, then n
--       records, then parts of remembered ids
-- ARGV  1 epoch, 2 replication id of the primary, 3 now, 4 the latest clock that
--       now may be behind, 5 m, 6 n, 7 a channel (empty: nobody is told) and
--       8 the message, 9 the name under which this node takes turns (empty: it
--       does not), 10 "1" if it wants another turn after this, 11 the numbers of
--       records that whoever has the next turn is told, separated by commas,
--       12 where the name of a record begins in its key;
--       13 the stamps of all records, 16 zeros if one must be absent; 14 a letter
--       for each record, A for the first index, that lists it; 15 a letter for
--       each record, A for none of its parts, B for one, that are returned if the
--       swap is lost; 16 "1" if the records are small; 17 the name of this node
--       among the marks and 18 the mark that it knows to have left.
--       If something is written: the value of each record, empty if it stays as
--       it is; what is appended to each part; operations: a letter and its
--       arguments.
--
-- A value begins with a stamp of 16 bytes that was never used before. Everything
-- is checked before anything is written, types of keys and arguments included,
-- since a script that fails half-way is not rolled back. Whoever cannot be told
-- of a swap is not told; it stands all the same.
--
-- Returns "ok", the clock, and "1" if this node now waits for its turn, "2" if
-- others do and it takes none; or "lost", the clock, the same, and all records
-- and parts, 0 where they have not changed; or "frozen" and the clock while a
-- snapshot is saved; or "absent" as load.lua does, or what guard.lua says; or "behind" if the
-- mark of this node is older than it knows; or "half" and an error if it was
-- stopped between two writes.
--
-- Turns spare nodes that write the same records from losing to each other. They
-- are a hint: a swap is checked the same whether it was its node's turn or not.

local clock = call('GET', KEYS[3])
if not clock or #clock < 21 or not string.find(clock, '^%d+ %d+$') or string.sub(clock, 20, 20) ~= ' ' then
  return {'absent', 0}
end
if tonumber(call('ZSCORE', KEYS[7], ARGV[17]) or 0) < tonumber(ARGV[18]) then
  return {'behind'}
end
local now = string.sub(clock, 1, 19)

local m, n = tonumber(ARGV[5]), tonumber(ARGV[6])
local f = 7       -- the key before the first index
local r = f + m   -- the key before the first record
local q = r + n   -- the key before the first part
local first = 19  -- the first value
local me, stamps = ARGV[9], ARGV[13]
local none = string.rep('\0', 16)
local line = call('TYPE', KEYS[5]).ok
local usable = line == 'list' or line == 'none' -- else somebody has put something else there
local some = 1000 -- keys of one command: Lua has no room for many more

-- whole tells whether an index has as many names as were ever put there and not
-- removed.
local function whole(index)
  return call('ZSCORE', KEYS[6], '!') and
    call('ZCARD', KEYS[index]) == tonumber(call('ZSCORE', KEYS[6], string.sub(KEYS[index], -1)) or 0)
end
local function indexOf(i)
  return f + string.byte(ARGV[14], i) - 64
end

local lost = now > ARGV[4]
local changed = {}
local missing = {} -- by index: a record that is absent, as it has to be
local absent = {}  -- all of these
local function compare(i, stamp)
  if stamp ~= string.sub(stamps, 16 * i - 15, 16 * i) then
    lost = true
    changed[i] = true
  elseif stamp == none then
    missing[indexOf(i)] = i
    absent[#absent + 1] = i
  end
end
if ARGV[16] == '1' then
  for from = 1, n, some do
    local to = math.min(from + some - 1, n)
    local values = call('MGET', unpack(KEYS, r + from, r + to))
    for i = from, to do
      local value = values[i - from + 1]
      if value then
        compare(i, string.sub(value, 1, 16))
      else
        call('STRLEN', KEYS[r + i]) -- an error if it is there and no string
        compare(i, none)
      end
    end
  end
else
  for i = 1, n do
    local stamp = call('GETRANGE', KEYS[r + i], '0', '15')
    compare(i, stamp == '' and none or stamp)
  end
end
for index, i in pairs(missing) do
  if not whole(index) then
    return {'absent', i}
  end
end
if lost then
  local waits = '0'
  if me ~= '' and usable then
    if not call('LPOS', KEYS[5], me) then
      call('RPUSH', KEYS[5], me)
    end
    waits = '1'
  end
  local reply = {'lost', clock, waits}
  local part, at = q, 3 + n
  for i = 1, n do
    local value = 0
    if changed[i] then
      value = call('GET', KEYS[r + i])
      if not value then
        local index = indexOf(i)
        if call('ZSCORE', KEYS[index], string.sub(KEYS[r + i], tonumber(ARGV[12]))) or not whole(index) then
          return {'absent', i}
        end
      end
    end
    reply[3 + i] = value
    for _ = 1, string.byte(ARGV[15], i) - 65 do
      part, at = part + 1, at + 1
      if changed[i] then
        reply[at] = redis.pcall('GET', KEYS[part])
      else
        reply[at] = 0
      end
    end
  end
  return reply
end

-- vanished returns a record that has to be absent and is listed all the same: it
-- was there, and nobody has removed it. Unlisted are the names that the swap takes
-- out of their lists.
local function vanished(unlisted)
  for _, i in ipairs(absent) do
    local index, name = KEYS[indexOf(i)], string.sub(KEYS[r + i], tonumber(ARGV[12]))
    if not unlisted[index .. name] and call('ZSCORE', index, name) then
      return i
    end
  end
end

-- turn passes the turn on to the first who waits for it and is there, with the
-- new values of what it is to be told.
local function turn()
  if line ~= 'list' then
    return '0'
  elseif me == '' then
    return '2'
  end
  call('LREM', KEYS[5], '0', me)
  local told = {}
  if first <= #ARGV then
    for i in string.gmatch(ARGV[11], '%d+') do
      local key, value = KEYS[r + i], ARGV[first - 1 + i]
      if value ~= '' then
        told[#told + 1] = struct.pack('>I4', #key) .. key .. struct.pack('>I4', #value) .. value
      end
    end
  end
  told = table.concat(told)
  while true do
    local whose = call('LPOP', KEYS[5])
    if not whose then
      return '0'
    end
    local hears = redis.pcall('PUBLISH', whose, told)
    if type(hears) == 'number' and hears > 0 then
      break
    end
  end
  if ARGV[10] == '1' then
    call('RPUSH', KEYS[5], me)
    return '1'
  end
  return '0'
end

if first > #ARGV then
  local i = vanished({})
  if i then
    return {'absent', i}
  end
  return {'ok', clock, turn()}
end
-- The clock stands still as well: no lease can be renewed meanwhile.
if call('EXISTS', KEYS[2]) == 1 then
  return {'frozen', clock}
end

-- arguments of each operation, beside its letter; C changes nothing but the clock
local args = {C = 0, D = 1, W = 2, X = 1, E = 1, T = 2, Z = 2, R = 1, I = 2, J = 2, L = 2}
local parts = #KEYS - q
local rest = first + n + parts -- the first operation
for i = 1, parts do
  if ARGV[first + n + i - 1] ~= '' then
    call('STRLEN', KEYS[q + i])
  end
end
local unlisted = {}
local i = rest
while i <= #ARGV do
  local op = ARGV[i]
  if i + args[op] > #ARGV then
    return redis.error_reply('ERR an operation without its arguments')
  elseif op == 'W' or op == 'X' or op == 'T' then
    call('STRLEN', KEYS[tonumber(ARGV[i + 1])])
    if op == 'T' and not tonumber(ARGV[i + 2]) then
      return redis.error_reply('ERR a length that is no number')
    end
  elseif op == 'E' then -- it has to be there
    if call('STRLEN', KEYS[tonumber(ARGV[i + 1])]) == 0 then
      return {'absent', 0}
    end
  elseif op == 'Z' or op == 'R' then
    call('ZSCORE', KEYS[4], '')
    if op == 'Z' and not tonumber(ARGV[i + 1]) then
      return redis.error_reply('ERR a score that is no number')
    end
  elseif op == 'L' then
    call('ZSCORE', KEYS[tonumber(ARGV[i + 1])], '')
  elseif op == 'I' or op == 'J' then
    if not whole(tonumber(ARGV[i + 1])) then
      return {'absent', 0}
    end
    if op == 'J' then
      unlisted[KEYS[tonumber(ARGV[i + 1])] .. ARGV[i + 2]] = true
    end
  end
  i = i + 1 + args[op]
end
local gone = vanished(unlisted)
if gone then
  return {'absent', gone}
end
local seq = tonumber(string.sub(clock, 21))
if n > 0 then
  seq = seq + 1
end
if ARGV[3] > now then
  now = ARGV[3]
end
clock = now .. ' ' .. string.format('%.0f', seq)

local written = false
local done, err = pcall(function()
  local set = {KEYS[3], clock}
  for i = 1, n do
    local value = ARGV[first - 1 + i]
    if value ~= '' then
      set[#set + 1] = KEYS[r + i]
      set[#set + 1] = value
    end
  end
  for from = 1, #set, some do
    call('MSET', unpack(set, from, math.min(from + some - 1, #set)))
    written = true
  end
  call('ZADD', KEYS[7], 'GT', string.format('%.0f', seq), ARGV[17])
  for i = 1, parts do
    local bytes = ARGV[first + n + i - 1]
    if bytes ~= '' then
      call('APPEND', KEYS[q + i], bytes)
    end
  end
  i = rest
  while i <= #ARGV do
    local op = ARGV[i]
    if op == 'W' then
      call('SET', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2])
    elseif op == 'T' then -- what is left without its first bytes
      local key = KEYS[tonumber(ARGV[i + 1])]
      local left = call('GETRANGE', key, ARGV[i + 2], '-1')
      if left == '' then
        call('DEL', key)
      else
        call('SET', key, left)
      end
    elseif op == 'D' or op == 'X' then
      call('DEL', KEYS[tonumber(ARGV[i + 1])])
    elseif op == 'Z' then
      call('ZADD', KEYS[4], ARGV[i + 1], ARGV[i + 2])
    elseif op == 'R' then
      call('ZREM', KEYS[4], ARGV[i + 1])
    elseif op == 'L' then
      call('ZREM', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2])
    elseif op == 'I' or op == 'J' then
      local index = KEYS[tonumber(ARGV[i + 1])]
      local by = op == 'I' and call('ZADD', index, '0', ARGV[i + 2]) or -call('ZREM', index, ARGV[i + 2])
      if by ~= 0 then
        call('ZADD', KEYS[6], 'INCR', by, string.sub(index, -1))
      end
    end
    i = i + 1 + args[op]
  end
end)
if not done and not written then
  error(err, 0) -- this Redis takes no writes, and has taken none
elseif not done then
  return {'half', tostring(type(err) == 'table' and err.err or err)}
end
if ARGV[7] ~= '' then
  redis.pcall('PUBLISH', ARGV[7], ARGV[8])
end
local fine, waits = pcall(turn)
return {'ok', clock, fine and waits or '0'}
