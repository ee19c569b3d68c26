-- Show the holder, for people. Changes nothing.
--
-- KEYS[1]  the lock
--
-- Returns nil if there is no such key. Otherwise in one string, separated by spaces: the remaining ttl in ms (-1:
-- none), the length of the value (-1: not a string), and the value's first 93 bytes, a token with the longest label.
--
-- A value may be large. It is read whole only if the user may not run STRLEN and GETRANGE: locks need GET alone.

local left = redis.call('PTTL', KEYS[1])
local length = redis.pcall('STRLEN', KEYS[1])
local value = type(length) == 'number' and redis.pcall('GETRANGE', KEYS[1], 0, 92)
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
return string.format('%.0f %.0f ', left, length) .. (length < 0 and '' or string.sub(value, 1, 93))
