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
