-- Compare and count (rule R20).
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter; kept for a day
-- ARGV[1]  the token
-- ARGV[2]  the smallest number that may be returned
--
-- Returns -1 or -2 as RELEASE if the token does not hold the lock. Otherwise a number above all earlier ones, at least ARGV[2], and at
-- least the time of day in microseconds, in steps of 0.1 s: so a lost counter continues above what it has returned.

local value = redis.call('GET', KEYS[1])
if string.sub(value or '', 1, 20) ~= ARGV[1] then
  return value and -1 or -2
end
