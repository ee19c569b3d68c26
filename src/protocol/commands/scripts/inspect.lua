-- Show the holder, for people. Changes nothing.
--
-- KEYS[1]  the lock
--
-- Returns nil if there is no such key. Otherwise in one string, separated by spaces: the remaining ttl in ms (-1:
-- none), the length of the value (-1: not a string), and the value's first 256 bytes: what is longer is no lock.
--
-- For permits and readers (members.lua) a list of strings, one for each holder: for how many ms it has the lock, a space, and the first
-- 269 bytes of its member, one more than the longest. Those that last longest, about 60,000 bytes of them.
--
-- A value may be large. It is read whole only if the user may not run STRLEN and GETRANGE: locks need GET alone.

local left = redis.call('PTTL', KEYS[1])
local length = redis.pcall('STRLEN', KEYS[1])
local first = type(length) ~= 'number' and redis.pcall('ZRANGE', KEYS[1], 0, 0)[1]
if first and string.match(first, '^redlock:[rs]%d%d%d') then
  local time, holders, size = redis.call('TIME'), {}, 0
  local last = redis.call('ZRANGE', KEYS[1], -1000, -1, 'WITHSCORES')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- The key ends with the last holder (rule R49a).
  for i = #last, left < 0 and #last + 1 or 2, -2 do
    if #last[i - 1] >= 32 and string.match(last[i - 1], '^redlock:[rs]%d%d%d') then
      now = math.min(now, last[i] - left)
      break
    end
  end
  for i = #last, 2, -2 do
    if last[i] - now >= 0 and size < 60000 then
      holders[#holders + 1] = string.format('%.0f ', last[i] - now) .. string.sub(last[i - 1], 1, 269)
      size = size + 8 + #holders[#holders]
    end
  end
  return holders[1] and holders
end
local value = type(length) == 'number' and redis.pcall('GETRANGE', KEYS[1], 0, 255)
if type(value) ~= 'string' then
  value = redis.pcall('GET', KEYS[1])
  if not value then
    return false
  end
  length = -1
  if type(value) == 'string' then
    length = #value
  elseif not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
end
if left == -2 then
  return false
end
return string.format('%.0f %.0f ', left, length) .. (length < 0 and '' or string.sub(value, 1, 256))
