-- Compare and count (rule R20).
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter; kept for a day
-- ARGV[1]  the token
-- ARGV[2]  the smallest number that may be returned
--
-- Returns 0 if the token does not hold the lock. Otherwise a number above all earlier ones, at least ARGV[2], and at
-- least the time of day in microseconds, in steps of 0.1 s: so a lost counter continues above what it has returned.

if string.sub(redis.call('GET', KEYS[1]) or '', 1, 20) ~= ARGV[1] then
  return 0
end
local t = redis.call('TIME')
local n = math.max((redis.call('GET', KEYS[2]) or 0) + 1, tonumber(ARGV[2]), t[1] * 1000000 + t[2] - t[2] % 100000)
-- 2^53 - 1: larger numbers are not exact. (The comparison also catches a counter that is "nan".)
if not (n <= 9007199254740991) then
  return redis.error_reply('ERR the fencing counter is out of range')
end
-- A large number as it is would be written with an exponent, and rounded.
redis.call('SET', KEYS[2], string.format('%.0f', n), 'PX', 86400000)
return n
