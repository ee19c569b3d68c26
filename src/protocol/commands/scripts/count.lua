-- The end of FENCE: count.

local t = redis.call('TIME')
local n = math.max((redis.call('GET', KEYS[2]) or 0) + 1, tonumber(ARGV[2]), t[1] * 1000000 + t[2] - t[2] % 100000)
-- 2^53 - 1: larger numbers are not exact. (The comparison also catches a counter that is "nan".)
if not (n <= 9007199254740991) then
  return redis.error_reply('ERR the fencing counter is out of range')
end
-- A large number as it is would be written with an exponent, and rounded.
redis.call('SET', KEYS[2], string.format('%.0f', n), 'PX', 86400000)
return n
