-- Show who waits, for people. Changes nothing.
--
-- KEYS[1]  the queue
--
-- Returns those that have waited longest, each before the time of its arrival: so many that about 60,000 bytes are enough. Of each the
-- first 170 bytes, one more than the longest: another program's may be large.

local waiters = redis.call('ZRANGE', KEYS[1], 0, 299, 'WITHSCORES')
for i = 1, #waiters, 2 do
  waiters[i] = string.sub(waiters[i], 1, 170)
end
return waiters
